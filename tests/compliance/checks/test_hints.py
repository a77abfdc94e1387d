"""Findings that say what the mistake is, once, and how whoever made it fixes it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cepheid.compliance.finding import Finding
from cepheid.rules import definition
from tests.compliance.builder import Record, power_lines, run_records, write_log, write_result
from tests.compliance.judging import find_all

pytestmark = pytest.mark.usefixtures("fast_reference")

MINI = definition.load("galaxy_shape", "mini")


def find(tmp_path: Path, change: Callable[[Record], object]) -> list[Finding]:
    records = run_records(MINI, blocks=9)
    for record in records:
        change(record)
    return find_all(write_log(tmp_path / "result_0.txt", records))


def scale_clock(factor: float) -> Callable[[Record], object]:
    def change(record: Record) -> None:
        record["metadata"]["monotonic_ms"] *= factor

    return change


def test_a_clock_in_another_unit_is_not_called_stepping(tmp_path: Path) -> None:
    for factor, unit in ((1e-3, "seconds"), (1e3, "microseconds"), (1e6, "nanoseconds")):
        findings = find(tmp_path, scale_clock(factor))
        (found,) = (finding for finding in findings if finding.rule == "T4")
        assert found.code == "T4.unit"
        assert found.message == f"metadata.monotonic_ms looks like {unit}"
        assert "time.monotonic() * 1000" in found.hint


def test_a_wall_clock_in_seconds_is_recognised(tmp_path: Path) -> None:
    found = find(tmp_path, lambda record: record.update(time_ms=record["time_ms"] // 1000))
    assert [finding.message for finding in found] == ["time_ms looks like seconds"]


def test_a_clock_that_runs_wrong_is_still_a_clock_apart(tmp_path: Path) -> None:
    codes = {finding.code for finding in find(tmp_path, scale_clock(1.01))}
    assert "T4.clocks_apart" in codes
    assert "T4.unit" not in codes


def test_a_field_that_is_never_written_is_one_finding(tmp_path: Path) -> None:
    found = find(tmp_path, lambda record: record["metadata"].pop("lineno"))
    (finding,) = (each for each in found if each.code.startswith("T1."))
    count = len(run_records(MINI, blocks=9))
    assert finding.code == "T1.schema"
    assert finding.message.endswith(f"lineno that wrote the record, in {count} records")
    assert finding.line == 1


def test_the_hint_for_missing_runs_serves_every_program(tmp_path: Path) -> None:
    found = find_all(write_result(tmp_path / "acme", MINI, runs=2))
    (finding,) = (each for each in found if each.code == "T16.too_few")
    assert finding.hint.startswith("make them as those that are there")


def test_one_result_of_a_submission_leaves_the_manifest_unchecked(tmp_path: Path) -> None:
    folder = write_result(tmp_path / "submissions" / "acme", MINI)
    found = find_all(folder)
    (note,) = [finding for finding in found if finding.rule == "S4"]
    assert (note.code, note.severity) == ("S4.not_checked", "note")
    assert "submissions/acme" in note.hint
    whole = find_all(folder.parents[2])
    assert "S4.not_checked" not in {finding.code for finding in whole}


@pytest.mark.parametrize("name", ["systems/box.json", "manifest.json"])
def test_deep_nesting_is_reported_in_words(name: str, tmp_path: Path) -> None:
    root = tmp_path / "submissions" / "acme"
    write_result(root, MINI)
    (root / name).write_text("[" * 200_000)
    text = " ".join(str(finding) for finding in find_all(root))
    assert "nested too deeply" in text
    assert "recursion" not in text


def test_a_wrong_power_reading_is_quoted(tmp_path: Path) -> None:
    folder = write_result(tmp_path, MINI)
    lines = power_lines(run_records(MINI), {"node0": 800.0})
    lines[5] = f"{lines[5].split(',')[0]},much"
    (folder / "power_0.csv").write_text("\n".join(lines))
    found = find_all(tmp_path)
    (form,) = [finding for finding in found if finding.code == "T23.form"]
    assert form.got == "'much'"
