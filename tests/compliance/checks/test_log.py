"""Compliant logs raise nothing, aborted ones only what they are, and broken ones no avalanche."""

import copy
from collections.abc import Mapping
from pathlib import Path

import pytest

from cepheid.compliance.checks import Place, check_log
from cepheid.compliance.checks.log.hyperparameters import check_closed_division
from cepheid.compliance.checks.registry import Needs, rule
from cepheid.compliance.finding import Finding
from cepheid.compliance.read.log import runlog
from cepheid.rules import definition, rounds
from tests.compliance.builder import (
    line_number,
    line_of,
    put,
    put_metadata,
    run_records,
    write_log,
)
from tests.compliance.checks.test_catalogue import PLACE
from tests.compliance.small import STAR_SHAPE

ROUND = rounds.load("v1.0")
PAIRS = [(name, scale) for name in definition.names() for scale in definition.scales(name)]


@pytest.mark.parametrize(("name", "scale"), PAIRS)
@pytest.mark.parametrize("division", ["closed", "open"])
def test_a_compliant_log_is_clean(name: str, scale: str, division: str, tmp_path: Path) -> None:
    judged_by = definition.load(name, scale)
    has_weights = judged_by.kind == "train" or "weights_digest" in judged_by.model
    if division == "closed" and not has_weights:
        pytest.skip("nobody has published weights at this scale, so nothing can be closed")
    path = write_log(tmp_path / "result_0.txt", run_records(judged_by, division=division))
    place = Place("v1.0", "acme", "box", name, scale, division, in_result=True)
    assert check_log(runlog.read(path), place, ROUND) == []
    assert check_log(runlog.read(path), Place("v1.0"), ROUND) == []


def test_other_output_between_the_records_does_not_matter(tmp_path: Path) -> None:
    records = run_records(definition.load("galaxy_shape", "mini"))
    lines = [entry for record in records for entry in ("loss 0.3 é", line_of(record), "")]
    path = tmp_path / "result_0.txt"
    path.write_text("\r\n".join(lines), encoding="utf-8")  # and no line feed at the end
    assert check_log(runlog.read(path), PLACE, ROUND) == []


def test_an_open_run_may_leave_out_hyperparameters(tmp_path: Path) -> None:
    records = run_records(definition.load("galaxy_shape", "mini"), division="open")
    kept = [record for record in records if not record["key"].startswith("opt_adam")]
    path = write_log(tmp_path / "result_0.txt", kept)
    assert check_log(runlog.read(path), Place("v1.0"), ROUND) == []


@pytest.mark.parametrize("last", ["block_start", "block_stop", "eval_start"])
def test_a_run_may_fail_within_a_block(last: str, tmp_path: Path) -> None:
    records = run_records(definition.load("galaxy_shape", "mini"), converged=False)
    failed = [*records[: line_number(records, last)], records[-1]]
    counted = [r["metadata"]["samples_count"] for r in failed if r["key"] == "block_stop"]
    stop = put_metadata(failed, "run_stop", samples_count=max(counted, default=0))
    path = write_log(tmp_path / "result_0.txt", stop)
    assert check_log(runlog.read(path), PLACE, ROUND) == []
    alone = check_log(runlog.read(path), Place("v1.0"), ROUND)
    assert [finding.rule for finding in alone] == ["T17"]


@pytest.mark.parametrize("lines", [1, 5, 12, 20, 30])
def test_a_log_cut_off_anywhere_gives_few_findings(lines: int, tmp_path: Path) -> None:
    text = "\n".join(map(line_of, run_records(definition.load("galaxy_shape", "mini"))[:lines]))
    path = tmp_path / "result_0.txt"
    path.write_text(text[:-10], encoding="utf-8")
    findings = check_log(runlog.read(path), PLACE, ROUND)
    assert [(finding.rule, finding.line) for finding in findings] == [("T1", lines)]


def test_a_hyperparameter_that_depends_on_the_batch_size(tmp_path: Path) -> None:
    """No definition has such a relation yet: the check is asked with one that has."""
    hyperparameters = copy.deepcopy(STAR_SHAPE["hyperparameters"])
    hyperparameters["opt_base_learning_rate"]["closed"]["at_most"] = {"global_batch_size": 1e-4}
    judged_by = definition.parse({**STAR_SHAPE, "hyperparameters": hyperparameters}, "mini")
    place = Place("v1.0", division="closed")
    records = run_records(judged_by)
    run = runlog.read(write_log(tmp_path / "result_0.txt", records))
    assert list(check_closed_division(run, judged_by, place)) == []
    smaller = put(records, "global_batch_size", value=5)
    run = runlog.read(write_log(tmp_path / "result_0.txt", smaller))
    (found,) = check_closed_division(run, judged_by, place)
    assert found.line == line_number(records, "opt_base_learning_rate")
    assert found.message.startswith(
        "opt_base_learning_rate must be at most 0.0001 × global_batch_size, that is 0.0005"
    )
    assert found.expected == "from 1e-06 to 1, at most 0.0001 × global_batch_size"


def test_a_rule_has_one_check() -> None:
    with pytest.raises(ValueError, match="T8 has a check already"):
        rule("T8", Needs.RECORDS)(lambda run, place: iter(()))


FULL = definition.load("resnet50", "full")


def findings(
    path: Path, values: Mapping[str, object], logged: object = None, division: str = "closed"
) -> list[Finding]:
    """Of a log whose evaluations follow ``values`` and that says another offset, if any."""
    records = run_records(FULL, division=division, hyperparameters=values)
    if logged is not None:
        records = put(records, "eval_offset_epochs", value=logged)
    path.write_text("".join(line_of(record) + "\n" for record in records), encoding="utf-8")
    place = Place("v1.0", "acme", "box", "resnet50", "full", division, in_result=True)
    return [f for f in check_log(runlog.read(path), place, rounds.load("v1.0")) if f.is_error]


def test_evaluations_follow_the_offset(tmp_path: Path) -> None:
    for offset in range(4):
        assert not findings(tmp_path / "result_0.txt", {"eval_offset_epochs": offset})
    (found,) = findings(tmp_path / "result_0.txt", {"eval_offset_epochs": 1}, logged=2)
    assert found.code == "T8.early"


def test_the_open_division_has_the_same_offsets(tmp_path: Path) -> None:
    (found,) = findings(tmp_path / "result_0.txt", {"eval_offset_epochs": 5}, division="open")
    assert found.code == "T8.offset"
    assert "eval_offset_epochs" in found.message
