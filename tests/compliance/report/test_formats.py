"""Reports as text, SARIF and workflow commands; rules and codes as they are explained."""

import json
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cepheid.compliance.finding import Finding, escape, format_value, limit_findings, sort_findings
from cepheid.compliance.report import formats as report
from cepheid.compliance.report.formats import FORMATS, format_github_command, format_sarif
from cepheid.compliance.report.rulebook import explain, read_rules
from cepheid.rules import rounds
from cepheid.rules.errors import UserError
from tests import assert_refused


def make_finding(**changes: Any) -> Finding:
    facts: dict[str, Any] = {
        "code": "T8.late", "severity": "error", "path": Path("a/result_0.txt"), "line": 7,
        "message": "late", "expected": "8", "got": "9", "hint": "change it",
    }  # fmt: skip
    return Finding(**{**facts, **changes})


def test_many_findings_of_one_cause_are_one_and_a_table_counts_them() -> None:
    def find(log: int, **changes: Any) -> Finding:
        facts = {"message": f"late by {log:,}.5 s", "path": Path(f"a/result_{log}.txt"), **changes}
        return make_finding(**facts)

    late = [find(log) for log in range(1000, 1006)]
    other = [find(1, expected="another"), find(2, code="T4.more", severity="note")]
    text = report.format_text([*late[:3], *other, *late[3:]], 8)
    assert text.splitlines()[:4] == [
        "a/result_1000.txt:7: T8.late late by 1,000.5 s",
        "    expected 8, got 9",
        "    fix: change it; `cepheid check --explain T8` says why",
        "    the same 5 more times: a/result_1001.txt:7, a/result_1002.txt:7, a/result_1003.txt:7"
        " and 2 more",
    ]
    assert "expected another" in text
    table = text[text.index("\ncode ") :].split("\n\n")[-1].splitlines()
    assert [row.split()[:4] for row in table[2:] if row.startswith("T")] == [
        ["T8.late", "error", "7", "7"], ["T4.more", "note", "1", "1"],
    ]  # fmt: skip
    assert "--format json" in table[-2]
    assert table[-1] == "fail: 8 logs, 7 errors, 1 note"
    assert report.format_text(late[:3], 3).count("T8.late") == 3
    mixed = [find(7, code="T4.more", severity="note"), *late]
    assert report.format_text(mixed, 8, "a table").index("T8.late") == text.index("T8.late")
    lines = report.format_text(mixed, 8, "a table").splitlines()
    assert lines.index("a table") < next(n for n, line in enumerate(lines) if line[:5] == "code ")
    assert report.format_text([], 8, "a table") == "a table\n\npass: 8 logs, 0 errors"


def test_a_report_replaces_a_file_as_a_whole_or_says_that_it_cannot(tmp_path: Path) -> None:
    path = tmp_path / "findings.txt"
    path.write_text("before")
    report.write_report("after", path)
    assert path.read_text() == "after\n"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(UserError, match="choose another --output"):
        report.write_report("text", tmp_path / "no" / "such" / "folder" / "file")


RULES = read_rules()


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_says_how_it_is_checked_why_and_how_to_comply(rule: str) -> None:
    body = RULES[rule].body
    is_checked = body.startswith(("*Checked", "*Reviewed", "*Computed by", "*Kept by"))
    assert is_checked, "how is it checked?"
    assert body.count("*Why:* ") == 1, "why does it exist?"
    assert body.count("*To comply:* ") == 1, "how does a vendor comply?"
    assert body.index("*Why:*") < body.index("*To comply:*")
    assert explain(rule.lower()).startswith(f"{rule} ")
    assert "\n## " not in explain(rule)


def test_first_sentences_fit_beside_a_finding() -> None:
    for rule in RULES.values():
        sentence = rule.first_sentence
        assert 20 < len(sentence) < 400, rule.id
        assert sentence[-1] in ".:", rule.id
        assert not re.match(r"\*|Checked", sentence), rule.id


EXPLAINED: dict[str, tuple[str, ...]] = {  # how it begins, and what else it says
    "t8": ("T8 Evaluation cadence\n*Checked.*", "(rules/training.md)"),
    "T8.more": ("T8 Evaluation cadence\n", "(rules/training.md)"),  # the counting code
    "t8.late": (
        "T8.late (error): an evaluation comes after the samples",
        "    T8.late evaluation at 24,000 samples is late\n",
        "\n\nWhy: a run that evaluates less often", "`cepheid check --explain T8`"),
    "T16.too_few": (
        "T16.too_few (note or error): ", "or\n    T16.too_few provisional: 4 of 5 runs\n"),
    "T7": ("T7 ", "*Codes:*\n\n- `T7.no_time`: `run_stop` is not later than `run_start`"),
}  # fmt: skip


@pytest.mark.parametrize("asked", EXPLAINED)
def test_rules_and_codes_are_explained_with_examples_and_reasons(asked: str) -> None:
    beginning, *parts = EXPLAINED[asked]
    assert explain(asked).startswith(beginning)
    assert all(part in explain(asked).replace("`\n  ", "` ") for part in parts)


def test_an_unknown_rule_or_code_names_those_that_there_are() -> None:
    assert_refused('no rule "T99"', explain, "T99")
    assert_refused(r'T8 has no finding "T8.lat"; did you mean "T8.late"', explain, "T8.lat")
    assert_refused("people check this rule", explain, "S7.late")


SCHEMA = json.loads((Path(__file__).parent / "sarif.schema.json").read_text(encoding="utf-8"))
# The standard's own schema is not ours to copy. Where a copy is at hand, its path may be given.
OFFICIAL = os.environ.get("CEPHEID_SARIF_SCHEMA", "")


def sarif(*findings: Finding) -> Any:
    document = json.loads(format_sarif(findings, 1, rounds.CURRENT))
    jsonschema.Draft202012Validator(SCHEMA).validate(document)
    (run,) = document["runs"]
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    return run


def test_sarif_has_every_rule_of_the_round_with_its_text() -> None:
    rules = {rule["id"]: rule for rule in sarif()["tool"]["driver"]["rules"]}
    assert rules.keys() == rounds.load(rounds.CURRENT).rules.keys()
    assert rules["T8"]["name"] == "EvaluationCadence"
    assert rules["T8"]["shortDescription"]["text"] == "T8 Evaluation cadence"
    assert "*To comply:*" in rules["T8"]["help"]["markdown"]


def test_sarif_makes_neither_links_nor_urls_of_what_is_inside(tmp_path: Path) -> None:
    inside, outside = make_finding(path=Path.cwd() / "x y.txt"), make_finding(path=tmp_path / "é")
    found = [r["locations"][0]["physicalLocation"] for r in sarif(inside, outside)["results"]]
    assert found[0]["artifactLocation"]["uri"] == "x%20y.txt"
    assert found[1]["artifactLocation"]["uri"].startswith("file:///")
    assert found[1]["artifactLocation"]["uri"].endswith("/%C3%A9")
    (result,) = sarif(make_finding(message="[click](http://x) {0}"))["results"]
    assert "](" not in result["message"]["text"]
    assert "{{0}}" in result["message"]["text"]


names = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20
).filter(lambda name: name not in (".", "..")) | st.sampled_from(
    ["\udce9", "a:b", "::error::x", "%0A", "a\nb", "a,line=1"]
)


@given(name=names, text=st.text(max_size=30))
def test_any_name_and_text_stay_in_their_fields(name: str, text: str) -> None:
    odd = make_finding(path=Path("in") / name, message=text)
    (result,) = sarif(odd)["results"]
    uri = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    assert unquote_to_bytes(uri) == os.fsencode(Path("in") / name)
    command = format_github_command(odd)
    assert command.isprintable()
    matched = re.fullmatch(r"::error file=([^,:]*),line=7,title=T8.late::(.*)", command)
    assert matched, command
    for field in matched.groups():
        assert re.fullmatch(r"([^%]|%25|%0D|%0A|%3A|%2C)*", field)


def test_github_escapes_as_the_runner_asks() -> None:
    odd = make_finding(path=Path("a%,:\r\nb"), message="50% of\r\n::error::it", line=None, got="")
    assert format_github_command(odd) == (
        "::error file=a%25%2C%3A%0D%0Ab,title=T8.late::"
        "50%25 of%0D%0A::error::it%0Aexpected 8%0Afix: change it"
    )


@pytest.mark.parametrize(("severity", "says"), [("warning", "warning"), ("note", "notice")])
def test_github_knows_levels(severity: str, says: str) -> None:
    text = FORMATS["github"]([make_finding(severity=severity)], 1, rounds.CURRENT)
    assert text.startswith(f"::{says} file=a/result_0.txt,line=7,title=T8.late::late")
    assert text.endswith(f"\npass: 1 log, 0 errors, 1 {severity}")


def test_a_count_of_others_is_no_code_of_mlcommons() -> None:
    """In a published round it is a warning, of a code that no file has."""
    lowered = [make_finding(code=code, severity="warning") for code in ("T1.json", "T1.more")]
    assert report.list_of_mlcommons(lowered, "mlperf-training-4.0") == ["T1.json"]


@pytest.mark.skipif(not OFFICIAL, reason="CEPHEID_SARIF_SCHEMA names no copy of the schema")
def test_the_schema_of_the_standard() -> None:
    official = json.loads(Path(OFFICIAL).read_text(encoding="utf-8"))
    findings = [make_finding(), make_finding(line=None, severity="note", path=Path("/é"))]
    document = json.loads(format_sarif(findings, 1, rounds.CURRENT))
    formats = jsonschema.FormatChecker()
    jsonschema.Draft4Validator(official, format_checker=formats).validate(document)


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


def test_the_eleventh_of_a_rule_is_counted_and_hides_no_error() -> None:
    many = [Finding("T2.value", "error", Path("log"), line, "wrong") for line in range(1, 31)]
    other = Finding("T9.value", "error", Path("log"), 99, "also wrong")
    kept = limit_findings(sort_findings([other, *many]))
    assert kept[:10] == many[:10]
    (counted, last) = kept[10:]
    assert (counted.line, counted.message) == (11, "and 20 more of T2 in this log")
    assert counted.code == "T2.more"
    assert last == other
    assert limit_findings(sort_findings([other, *many]), goes_on=True) == [*many[:10], other]
    mild = [Finding("M1.repeated", "warning", Path("log"), line, "twice") for line in range(1, 20)]
    worse = Finding("M1.repeated", "error", Path("log"), 30, "two values")
    counted = limit_findings([*mild, worse])[-1]
    assert (counted.severity, counted.line) == ("error", 30)
