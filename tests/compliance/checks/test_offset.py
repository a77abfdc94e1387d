"""T8 with an offset that the run declares."""

from collections.abc import Mapping
from pathlib import Path

from cepheid.compliance.checks import Place, check_log
from cepheid.compliance.finding import Finding
from cepheid.compliance.read.log import runlog
from cepheid.rules import definition, rounds
from tests.compliance.builder import edit, line_of, run_records

MINI = definition.load("resnet50", "mini")


def findings(
    path: Path, values: Mapping[str, object], logged: object = None, division: str = "closed"
) -> list[Finding]:
    """Of a log whose evaluations follow ``values`` and that says another offset, if any."""
    records = run_records(MINI, division=division, hyperparameters=values)
    if logged is not None:
        records = edit(records, "eval_offset_epochs", lambda record: record.update(value=logged))
    path.write_text("".join(line_of(record) + "\n" for record in records), encoding="utf-8")
    place = Place("v1.0", "acme", "box", "resnet50", "mini", division, in_result=True)
    return [f for f in check_log(runlog.read(path), place, rounds.load("v1.0")) if f.is_error]


def test_every_allowed_offset_passes(tmp_path: Path) -> None:
    for offset in range(4):
        assert not findings(tmp_path / "result_0.txt", {"eval_offset_epochs": offset})


def test_evaluations_that_do_not_follow_the_offset_are_found(tmp_path: Path) -> None:
    (found,) = findings(tmp_path / "result_0.txt", {"eval_offset_epochs": 1}, logged=2)
    assert found.code == "T8.early"


def test_the_open_division_has_the_same_offsets(tmp_path: Path) -> None:
    (found,) = findings(tmp_path / "result_0.txt", {"eval_offset_epochs": 5}, division="open")
    assert found.code == "T8.offset"
    assert "eval_offset_epochs" in found.message
