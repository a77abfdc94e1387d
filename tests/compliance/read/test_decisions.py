"""Decisions: any file can be read, and its lines are the true ones. What they do is in checks/."""

import dataclasses
import datetime
import json
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cepheid.compliance.finding import Finding
from cepheid.compliance.judge.decided import covers
from cepheid.compliance.read import decisions
from cepheid.compliance.read.decisions import KINDS, Decision, Waiver
from cepheid.rules.documents import SCHEMAS

TEXT = """\
# granted on Monday
waivers:
  - {rule: T8, path: results/a, reason: the loader was late, who: Jane Doe, until: 2026-12-31}
  -
    rule: T10
    path: results/b/
    reason: 49,999 samples
    who: Jane Doe
    until: 2027-01-01
"""


def read(text: bytes, folder: Path) -> decisions.Decisions:
    path = folder / "decisions.yaml"
    path.write_bytes(text)
    return decisions.read(path)


def test_lines_are_those_of_the_file(tmp_path: Path) -> None:
    found = read(TEXT.encode(), tmp_path)
    assert found.problems == ()
    first, second = found.list_all(Waiver)
    assert (first.line, first.rule, first.until) == (3, "T8", datetime.date(2026, 12, 31))
    assert (second.line, second.path) == (5, PurePosixPath("results/b"))
    assert second.reason == "49,999 samples"


def test_one_bad_waiver_does_not_hide_the_others(tmp_path: Path) -> None:
    found = read(TEXT.replace("rule: T8", "rule: eight").encode(), tmp_path)
    assert [waiver.rule for waiver in found.list_all(Waiver)] == ["T10"]
    assert [problem.line for problem in found.problems] == [3]


@pytest.mark.parametrize("severity", ["warning", "note"])
def test_only_errors_are_waived(severity: str, tmp_path: Path) -> None:
    found = read(TEXT.encode(), tmp_path)
    (first, _) = found.list_all(Waiver)
    path = tmp_path / "results" / "a" / "result_0.txt"
    error = Finding("T8.late", "error", path, 1, "late")
    mild = Finding("T8.late", severity, path, 1, "late")  # type: ignore[arg-type]
    assert covers(found, first, error)
    assert not covers(found, first, mild)


@pytest.mark.parametrize(
    ("name", "is_covered"),
    [
        ("result_0.txt", True),
        ("result_0.txt.partial", True),  # the same log while its run goes on
        ("result_1.txt.partial", False),
        ("result_0.txt.partial.partial", False),
        ("result_0.partial", False),
        (".partial", False),
    ],
)
def test_a_waiver_of_one_log(name: str, is_covered: bool, tmp_path: Path) -> None:
    text = TEXT.replace("path: results/a", "path: results/a/result_0.txt")
    found = read(text.encode(), tmp_path)
    (first, _) = found.list_all(Waiver)
    error = Finding("T8.late", "error", tmp_path / "results" / "a" / name, 1, "late")
    assert covers(found, first, error) is is_covered


@given(
    st.binary(max_size=300)
    | st.text(alphabet="waivers:-[]{}&*!|>\"'#\n \t,?%@`0T", max_size=300).map(str.encode)
    | st.tuples(st.integers(0, len(TEXT)), st.text(max_size=5)).map(
        lambda cut: (TEXT[: cut[0]] + cut[1] + TEXT[cut[0] + 1 :]).encode()
    )
)
def test_any_bytes_can_be_read(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    found = read(text, tmp_path_factory.getbasetemp())
    assert found.problems or found.list_all(Decision) or b":" in text or b"{}" in text


def test_every_kind_has_the_fields_of_its_schema() -> None:
    schema = json.loads((SCHEMAS / "decisions.schema.json").read_text())
    assert list(schema["properties"]) == list(KINDS)
    for kind, known in KINDS.items():
        entry = schema["properties"][kind]["items"]
        fields = [each for each in dataclasses.fields(known) if each.name != "line"]
        assert set(entry["properties"]) == {each.name for each in fields}
        needed = {each.name for each in fields if each.default is dataclasses.MISSING}
        assert set(entry["required"]) == needed


COMPLETE = {
    "waivers": "{rule: T8, path: a, reason: it was too late, who: Jane Doe, until: 2026-12-31}",
    "disputes": "{path: a, other: b, verdict: other is the copy, reason: b came later,"
    " who: Jane Doe, on: 2026-12-31}",
    "objections": "{path: a, rule: T12, evidence: the rate in line 41, asked_for: withdraw it all,"
    " by: Jane Doe, on: 2026-12-31}",
    "withdrawals": "{path: a, reason: it was measured wrongly, who: Jane Doe, on: 2026-12-31}",
    "receipts": "{path: a, on: 2026-06-30}",
    "not_confirmed": "{path: a, reason: it was never available, who: Jane Doe, on: 2026-12-31}",
    "reproduced": "{path: a, reason: three runs on its own machine, who: Jane Doe, on: 2026-12-31}",
}


def test_an_entry_of_each_kind_can_be_read(tmp_path: Path) -> None:
    text = "".join(f"{kind}:\n  - {entry}\n" for kind, entry in COMPLETE.items())
    found = read(text.encode(), tmp_path)
    assert found.problems == ()
    for number, (kind, known) in enumerate(KINDS.items(), 1):
        (entry,) = found.list_all(known)
        assert (type(entry), entry.line) == (known, 2 * number)
        assert found.entries[kind] == (entry,)
