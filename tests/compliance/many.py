"""Many results, to measure the site by: ``python -m tests.compliance.many 2000 DIR``."""

import json
import sys
from pathlib import Path

from rules import definition
from rules.definition import Definition
from tests.compliance.builder import SYSTEM, line_of, run_records

BENCHMARKS = ("galaxy_shape", "galaxy_bnn")
PER_SUBMITTER = 100


def write_many(root: Path, count: int) -> Path:
    """``count`` results with all their runs at mini scale, each with times of its own."""
    known = [name for name in BENCHMARKS if name in definition.names()]
    mini = [definition.load(name, "mini") for name in known]
    for number in range(count):
        division = "closed" if number % 3 else "open"
        _write(root, mini[number % len(mini)], number // len(mini), division)
    return root


def _write(root: Path, asked: Definition, number: int, division: str) -> None:
    who = f"submitter{number // PER_SUBMITTER}"
    accelerators = 2 ** (number % 8)
    system = {
        **SYSTEM,
        "submitter": who,
        "system": f"system{number}",
        "accelerator": f"Example {'ABCD'[number % 4]}100",
        "accelerators_per_node": accelerators,
    }
    folder = root / who / "results" / f"system{number}" / f"{asked.name}-mini-{division}"
    folder.mkdir(parents=True)
    blocks = 5 + number % 5
    for index in range(asked.runs.required):
        block_ms = 20_000 / accelerators**0.9 + 10 * ((number * 7 + index * 13) % 101)
        records = run_records(
            asked, index, blocks=blocks, division=division, block_ms=block_ms, system=system
        )
        text = "".join(line_of(record) + "\n" for record in records)
        (folder / f"result_{index}.txt").write_text(text, encoding="utf-8")
    description = root / who / "systems" / f"system{number}.json"
    description.parent.mkdir(parents=True, exist_ok=True)
    description.write_text(json.dumps(system), encoding="utf-8")


if __name__ == "__main__":
    write_many(Path(sys.argv[2]), int(sys.argv[1]))
