"""How findings print, and that no log can write to a terminal through them."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cepheid.compliance.finding import Finding, escape, format_value, limit_findings, sort_findings

LATE = Finding(
    "T8.late", "error", Path("results/h200/galaxy_shape-full-closed/result_2.txt"), 118,
    "evaluation at 24,000 samples is late", "an evaluation after every 8,000 samples",
    "none after 16,000", "evaluate after each block",
)  # fmt: skip


def test_text_is_that_of_the_design() -> None:
    assert LATE.text() == (
        "results/h200/galaxy_shape-full-closed/result_2.txt:118: "
        "T8.late evaluation at 24,000 samples is late\n"
        "    expected an evaluation after every 8,000 samples, got none after 16,000\n"
        "    fix: evaluate after each block; `cepheid check --explain T8` says why"
    )


def test_json_has_all_fields() -> None:
    assert json.loads(json.dumps(LATE.as_json())) == {
        "rule": "T8",
        "code": "T8.late",
        "severity": "error",
        "path": "results/h200/galaxy_shape-full-closed/result_2.txt",
        "line": 118,
        "message": "evaluation at 24,000 samples is late",
        "expected": "an evaluation after every 8,000 samples",
        "got": "none after 16,000",
        "hint": "evaluate after each block",
    }


def test_a_note_says_that_it_is_one() -> None:
    note = Finding("T16.too_few", "note", Path("results"), None, "provisional: 1 of 5 runs")
    assert note.text() == "results: T16.too_few note: provisional: 1 of 5 runs"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"), (None, "null"), (12, "12"), (1_500_817, "1,500,817"),
        (10**400, str(10**400)[:199] + "…"), (0.1, "0.1"), (float("nan"), "nan"),
        ("a\x1b[31mb\u202e\n\ud800", '"a\\x1b[31mb\\u202e\\n\\ud800"'),
        ("x" * 10_000, '"' + "x" * 198 + "…"), ({"a": [1, None]}, '{"a": [1, null]}'),
    ],
)  # fmt: skip
def test_values_are_shown_short_and_harmless(value: object, text: str) -> None:
    assert format_value(value) == text


@given(st.text(st.characters(codec=None)))
def test_whatever_a_log_says_stays_on_its_line(text: str) -> None:
    assert escape(text).isprintable()
    assert format_value(text).isprintable()


def test_the_eleventh_of_a_rule_is_counted_only() -> None:
    many = [Finding("T2.value", "error", Path("log"), line, "wrong") for line in range(1, 31)]
    other = Finding("T9.value", "error", Path("log"), 99, "also wrong")
    kept = limit_findings(sort_findings([other, *many]))
    assert kept[:10] == many[:10]
    (counted, last) = kept[10:]
    assert (counted.line, counted.message) == (11, "and 20 more of T2 in this log")
    assert counted.code == "T2.more"
    assert last == other
    assert limit_findings(sort_findings([other, *many]), goes_on=True) == [*many[:10], other]


def test_no_error_hides_behind_ten_warnings() -> None:
    mild = [Finding("M1.repeated", "warning", Path("log"), line, "twice") for line in range(1, 20)]
    worse = Finding("M1.repeated", "error", Path("log"), 30, "two values")
    counted = limit_findings([*mild, worse])[-1]
    assert (counted.severity, counted.line) == ("error", 30)
