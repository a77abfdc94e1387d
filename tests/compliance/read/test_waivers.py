"""Waivers: any file can be read, and its lines are the true ones. What they do is in checks/."""

import datetime
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cepheid.compliance.finding import Finding
from cepheid.compliance.read import waivers

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


def read(text: bytes, folder: Path) -> waivers.Waivers:
    path = folder / "waivers.yaml"
    path.write_bytes(text)
    return waivers.read(path)


def test_lines_are_those_of_the_file(tmp_path: Path) -> None:
    found = read(TEXT.encode(), tmp_path)
    assert found.problems == ()
    first, second = found.waivers
    assert (first.line, first.rule, first.until) == (3, "T8", datetime.date(2026, 12, 31))
    assert (second.line, second.place, second.reason) == (
        5,
        PurePosixPath("results/b"),
        "49,999 samples",
    )


def test_one_bad_waiver_does_not_hide_the_others(tmp_path: Path) -> None:
    found = read(TEXT.replace("rule: T8", "rule: eight").encode(), tmp_path)
    assert [waiver.rule for waiver in found.waivers] == ["T10"]
    assert [problem.line for problem in found.problems] == [3]


@pytest.mark.parametrize("severity", ["warning", "note"])
def test_only_errors_are_waived(severity: str, tmp_path: Path) -> None:
    (first, _) = read(TEXT.encode(), tmp_path).waivers
    path = tmp_path / "results" / "a" / "result_0.txt"
    error = Finding("T8.late", "error", path, 1, "late")
    mild = Finding("T8.late", severity, path, 1, "late")  # type: ignore[arg-type]
    assert first.covers(error, tmp_path)
    assert not first.covers(mild, tmp_path)


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
    (first, _) = read(text.encode(), tmp_path).waivers
    error = Finding("T8.late", "error", tmp_path / "results" / "a" / name, 1, "late")
    assert first.covers(error, tmp_path) is is_covered


@given(
    st.binary(max_size=300)
    | st.text(alphabet="waivers:-[]{}&*!|>\"'#\n \t,?%@`0T", max_size=300).map(str.encode)
    | st.tuples(st.integers(0, len(TEXT)), st.text(max_size=5)).map(
        lambda cut: (TEXT[: cut[0]] + cut[1] + TEXT[cut[0] + 1 :]).encode()
    )
)
def test_any_bytes_can_be_read(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    found = read(text, tmp_path_factory.getbasetemp())
    assert found.problems or found.waivers or b"waivers" in text
