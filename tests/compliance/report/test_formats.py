"""Reports, explanations, and writing to a file."""

from pathlib import Path

import pytest

from cepheid.compliance.finding import Finding
from cepheid.compliance.report import formats as report
from cepheid.compliance.report import rulebook
from cepheid.rules import rounds
from cepheid.rules.errors import UserError


def _finding(severity: str) -> Finding:
    return Finding("T9.value", severity, Path("a"), 1, "wrong", hint="change it")  # type: ignore[arg-type]


def test_the_last_line_counts() -> None:
    assert report.format_verdict([], 1) == "pass: 1 log, 0 errors"
    assert report.format_verdict([_finding("note")], 1) == "pass: 1 log, 0 errors, 1 note"
    both = [_finding("error"), _finding("warning"), _finding("warning")]
    assert report.format_verdict(both, 5) == "fail: 5 logs, 1 error, 2 warnings"


def test_only_the_first_of_a_rule_points_to_its_text() -> None:
    text = report.format_text([_finding("error"), _finding("error")], 1)
    assert text.count("--explain T9") == 1


@pytest.mark.parametrize("rule", rounds.load("v1.0").rules)
def test_every_checked_rule_can_be_explained(rule: str) -> None:
    text = rulebook.explain(rule.lower())
    assert text.startswith(f"{rule} ")
    assert "*Checked" in text
    assert "\n## " not in text


def test_an_unknown_rule_gets_a_suggestion() -> None:
    with pytest.raises(UserError, match='no rule "T99"'):
        rulebook.explain("T99")


def test_a_report_replaces_a_file_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "findings.txt"
    path.write_text("before")
    report.write_report("after", path)
    assert path.read_text() == "after\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_report_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="choose another --output"):
        report.write_report("text", tmp_path / "no" / "such" / "folder" / "file")
