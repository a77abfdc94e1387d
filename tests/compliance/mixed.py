"""A submitter's folder with all that a table can show: scored, provisional, rejected results."""

from pathlib import Path

from cepheid.rules import definition
from cepheid.rules.definition import Definition
from tests.compliance.builder import SYSTEM, put, run_records, write_log, write_result

HOSTILE = "<script>alert('box')</script> \u202eCPU"


def write_mixed(root: Path, mini: Definition) -> Path:
    """Five results of three systems."""
    full = definition.load(mini.name, "full")
    accelerated = {
        **SYSTEM, "system": "a100.x8", "accelerator": "Example A100", "accelerators_per_node": 8,
    }  # fmt: skip
    hostile = {**SYSTEM, "system": "odd", "processor": HOSTILE}
    write_result(root, mini)
    write_result(root, full, blocks=lambda index: 6 + index % 2)
    write_result(
        root, mini, system=accelerated, block_ms=4000,
        blocks=lambda index: 3 + index % 2, converged=lambda index: index != 3,
    )  # fmt: skip
    write_result(root, mini, runs=2, division="open")
    broken = write_result(root, mini, system=hostile)
    records = put(run_records(mini, 1, system=hostile), "opt_name", value="sgd")
    write_log(broken / "result_1.txt", records)
    return root
