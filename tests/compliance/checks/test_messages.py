"""Messages about what was not checked, and about what no parser can read."""

from pathlib import Path

import pytest

from cepheid.compliance.judge.judgement import judge
from cepheid.compliance.read import package
from cepheid.rules import definition, rounds
from tests.compliance.builder import power_lines, run_records, write_result

pytestmark = pytest.mark.usefixtures("fast_reference")

MINI = definition.load("galaxy_shape", "mini")
ROUND = rounds.load("v1.0")


def test_one_result_of_a_submission_leaves_the_manifest_unchecked(tmp_path: Path) -> None:
    folder = write_result(tmp_path / "submissions" / "acme", MINI)
    found = judge([package.read(folder)], ROUND).findings
    (note,) = [finding for finding in found if finding.rule == "S4"]
    assert (note.code, note.severity) == ("S4.not_checked", "note")
    assert "submissions/acme" in note.hint
    whole = judge([package.read(tmp_path / "submissions" / "acme")], ROUND).findings
    assert "S4.not_checked" not in {finding.code for finding in whole}


@pytest.mark.parametrize("name", ["systems/box.json", "manifest.json"])
def test_deep_nesting_is_reported_in_words(name: str, tmp_path: Path) -> None:
    root = tmp_path / "submissions" / "acme"
    write_result(root, MINI)
    (root / name).write_text("[" * 200_000)
    text = " ".join(str(finding) for finding in judge([package.read(root)], ROUND).findings)
    assert "nested too deeply" in text
    assert "recursion" not in text


def test_a_wrong_power_reading_is_quoted(tmp_path: Path) -> None:
    folder = write_result(tmp_path, MINI)
    lines = power_lines(run_records(MINI), {"node0": 800.0})
    lines[5] = f"{lines[5].split(',')[0]},much"
    (folder / "power_0.csv").write_text("\n".join(lines))
    found = judge([package.read(tmp_path)], ROUND).findings
    (form,) = [finding for finding in found if finding.code == "T23.form"]
    assert form.got == "'much'"
