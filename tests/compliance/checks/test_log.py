"""Compliant logs raise nothing, aborted ones only what they are, and broken ones no avalanche."""

import copy
from pathlib import Path

import pytest

from cepheid.compliance.checks import Place, check_log
from cepheid.compliance.checks.log.hyperparameters import check_closed_division
from cepheid.compliance.checks.registry import Needs, rule
from cepheid.compliance.finding import Finding
from cepheid.compliance.read.log import runlog
from cepheid.rules import definition
from tests.compliance.builder import (
    Record,
    line_number,
    line_of,
    put,
    put_metadata,
    run_records,
    write_log,
)
from tests.compliance.checks.test_catalogue import ABORTED, MINI, PLACE, RECORDS, ROUND
from tests.compliance.judging import check_records, place_of
from tests.compliance.small import STAR_SHAPE

PAIRS = [(name, scale) for name in definition.names() for scale in definition.scales(name)]


@pytest.mark.parametrize(("name", "scale"), PAIRS)
@pytest.mark.parametrize("division", ["closed", "open"])
def test_a_compliant_log_is_clean(name: str, scale: str, division: str, tmp_path: Path) -> None:
    judged_by = definition.load(name, scale)
    has_weights = judged_by.kind == "train" or "weights_digest" in judged_by.model
    if division == "closed" and not has_weights:
        pytest.skip("nobody has published weights at this scale, so nothing can be closed")
    records = run_records(judged_by, division=division)
    assert check_records(records, tmp_path, place_of(judged_by, division)) == []
    assert check_records(records, tmp_path) == []


def test_records_are_read_amid_other_output_and_open_ones_may_be_fewer(tmp_path: Path) -> None:
    lines = [entry for record in RECORDS for entry in ("loss 0.3 é", line_of(record), "")]
    path = tmp_path / "result_0.txt"
    path.write_text("\r\n".join(lines), encoding="utf-8")  # and no line feed at the end
    assert check_log(runlog.read(path), PLACE, ROUND) == []
    records = run_records(MINI, division="open")
    kept = [record for record in records if not record["key"].startswith("opt_adam")]
    assert check_records(kept, tmp_path) == []


@pytest.mark.parametrize("last", ["block_start", "block_stop", "eval_start"])
def test_a_run_may_fail_within_a_block(last: str, tmp_path: Path) -> None:
    failed = [*ABORTED[: line_number(ABORTED, last)], ABORTED[-1]]
    counted = [r["metadata"]["samples_count"] for r in failed if r["key"] == "block_stop"]
    stop = put_metadata(failed, "run_stop", samples_count=max(counted, default=0))
    assert check_records(stop, tmp_path, PLACE) == []
    assert [finding.rule for finding in check_records(stop, tmp_path)] == ["T17"]


@pytest.mark.parametrize("lines", [1, 5, 12, 20, 30])
def test_a_log_cut_off_anywhere_gives_few_findings(lines: int, tmp_path: Path) -> None:
    path = tmp_path / "result_0.txt"
    path.write_text("\n".join(map(line_of, RECORDS[:lines]))[:-10], encoding="utf-8")
    found = check_log(runlog.read(path), PLACE, ROUND)
    assert [(finding.rule, finding.line) for finding in found] == [("T1", lines)]


def test_a_hyperparameter_that_depends_on_the_batch_size(tmp_path: Path) -> None:
    """No definition has such a relation yet: the check is asked with one that has."""
    hyperparameters = copy.deepcopy(STAR_SHAPE["hyperparameters"])
    hyperparameters["opt_base_learning_rate"]["closed"]["at_most"] = {"global_batch_size": 1e-4}
    judged_by = definition.parse({**STAR_SHAPE, "hyperparameters": hyperparameters}, "mini")
    records = run_records(judged_by)

    def check(logged: list[Record]) -> list[Finding]:
        run = runlog.read(write_log(tmp_path / "result_0.txt", logged))
        return list(check_closed_division(run, judged_by, Place("v1.0", division="closed")))

    assert check(records) == []
    (found,) = check(put(records, "global_batch_size", value=5))
    assert found.line == line_number(records, "opt_base_learning_rate")
    assert found.message.startswith(
        "opt_base_learning_rate must be at most 0.0001 × global_batch_size, that is 0.0005"
    )
    assert found.expected == "from 1e-06 to 1, at most 0.0001 × global_batch_size"


def test_a_rule_has_one_check() -> None:
    with pytest.raises(ValueError, match="T8 has a check already"):
        rule("T8", Needs.RECORDS)(lambda run, place: iter(()))


def test_evaluations_follow_the_offset(tmp_path: Path) -> None:
    """In both divisions."""
    full = definition.load("resnet50", "full")

    def find(offset: int, logged: int, division: str) -> list[Finding]:
        asked = {"eval_offset_epochs": offset}
        records = run_records(full, division=division, hyperparameters=asked)
        records = put(records, "eval_offset_epochs", value=logged)
        found = check_records(records, tmp_path, place_of(full, division))
        return [finding for finding in found if finding.is_error]

    assert not any(find(offset, offset, "closed") for offset in range(4))
    assert [found.code for found in find(1, 2, "closed")] == ["T8.early"]
    (found,) = find(5, 5, "open")
    assert found.code == "T8.offset"
    assert "eval_offset_epochs" in found.message
