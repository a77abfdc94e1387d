"""SARIF and workflow commands: valid, true lines, and nothing hostile gets out of its field."""

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

from cepheid.compliance.finding import Finding
from cepheid.compliance.report.formats import FORMATS, format_github_command, format_sarif
from cepheid.rules import rounds

SCHEMA = json.loads((Path(__file__).parent / "sarif.schema.json").read_text(encoding="utf-8"))
# The standard's own schema is not ours to copy. Where a copy is at hand, its path may be given.
OFFICIAL = os.environ.get("CEPHEID_SARIF_SCHEMA", "")


def finding(**changes: Any) -> Finding:
    facts: dict[str, Any] = {
        "code": "T8.late", "severity": "error", "path": Path("a/result_0.txt"), "line": 7,
        "message": "late", "expected": "8", "got": "9", "hint": "change it",
    }  # fmt: skip
    return Finding(**{**facts, **changes})


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


def test_sarif_names_file_line_and_level() -> None:
    of_folder = finding(line=None, severity="note", path=Path("a"))
    results = sarif(finding(), of_folder)["results"]
    places = [result["locations"][0]["physicalLocation"] for result in results]
    assert places[0]["artifactLocation"] == {"uri": "a/result_0.txt", "uriBaseId": "%SRCROOT%"}
    assert places[0]["region"] == {"startLine": 7}
    assert "region" not in places[1]
    assert [result["level"] for result in results] == ["error", "note"]
    assert results[0]["message"]["text"] == "late\nexpected 8, got 9\nfix: change it"


def test_absolute_paths_in_the_folder_become_relative_and_others_are_urls(tmp_path: Path) -> None:
    inside, outside = finding(path=Path.cwd() / "x y.txt"), finding(path=tmp_path / "é")
    found = [r["locations"][0]["physicalLocation"] for r in sarif(inside, outside)["results"]]
    assert found[0]["artifactLocation"]["uri"] == "x%20y.txt"
    assert found[1]["artifactLocation"]["uri"].startswith("file:///")
    assert found[1]["artifactLocation"]["uri"].endswith("/%C3%A9")


def test_sarif_makes_no_links_and_no_placeholders_of_what_logs_hold() -> None:
    (result,) = sarif(finding(message="[click](http://x) {0}"))["results"]
    assert "](" not in result["message"]["text"]
    assert "{{0}}" in result["message"]["text"]


names = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=20
).filter(lambda name: name not in (".", "..")) | st.sampled_from(
    ["\udce9", "a:b", "::error::x", "%0A", "a\nb", "a,line=1"]
)


@given(name=names, text=st.text(max_size=30))
def test_any_name_and_text_stay_in_their_fields(name: str, text: str) -> None:
    odd = finding(path=Path("in") / name, message=text)
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
    odd = finding(path=Path("a%,:\r\nb"), message="50% of\r\n::error::it", line=None, got="")
    assert format_github_command(odd) == (
        "::error file=a%25%2C%3A%0D%0Ab,title=T8.late::"
        "50%25 of%0D%0A::error::it%0Aexpected 8%0Afix: change it"
    )


@pytest.mark.parametrize(("severity", "says"), [("warning", "warning"), ("note", "notice")])
def test_github_knows_levels(severity: str, says: str) -> None:
    text = FORMATS["github"]([finding(severity=severity)], 1, rounds.CURRENT)
    assert text.startswith(f"::{says} file=a/result_0.txt,line=7,title=T8.late::late")
    assert text.endswith(f"\npass: 1 log, 0 errors, 1 {severity}")


@pytest.mark.skipif(not OFFICIAL, reason="CEPHEID_SARIF_SCHEMA names no copy of the schema")
def test_the_schema_of_the_standard() -> None:
    official = json.loads(Path(OFFICIAL).read_text(encoding="utf-8"))
    findings = [finding(), finding(line=None, severity="note", path=Path("/é"))]
    document = json.loads(format_sarif(findings, 1, rounds.CURRENT))
    jsonschema.Draft4Validator(official, format_checker=jsonschema.FormatChecker()).validate(
        document
    )
