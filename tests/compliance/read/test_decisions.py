"""What organisers decide: any file can be read, by its true lines, and has its effect."""

import dataclasses
import datetime
import json
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cepheid.compliance.checks.submission.decided import digest_manifest
from cepheid.compliance.finding import Finding
from cepheid.compliance.judge.decided import covers
from cepheid.compliance.judge.judgement import judge
from cepheid.compliance.read import decisions, package
from cepheid.compliance.read.decisions import KINDS, Decision, Waiver
from cepheid.leaderboard.rows.entry import list_entries
from cepheid.rules import rounds
from cepheid.rules.definition import Definition
from cepheid.rules.documents import SCHEMAS
from cepheid.rules.rounds import Round
from cepheid.tools import pack_submission
from cepheid.tools.round.records import add_receipt
from tests.compliance.builder import write_result

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


def test_lines_are_those_of_the_file_whatever_else_is_bad(tmp_path: Path) -> None:
    found = read(TEXT.encode(), tmp_path)
    assert found.problems == ()
    first, second = found.list_all(Waiver)
    assert (first.line, first.rule, first.until) == (3, "T8", datetime.date(2026, 12, 31))
    assert (second.line, second.path) == (5, PurePosixPath("results/b"))
    assert second.reason == "49,999 samples"
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


def test_a_waiver_of_one_log(tmp_path: Path) -> None:
    for name, is_covered in [
        ("result_0.txt", True),
        ("result_0.txt.partial", True),  # the same log while its run goes on
        ("result_1.txt.partial", False),
        ("result_0.txt.partial.partial", False),
        ("result_0.partial", False),
        (".partial", False),
    ]:
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


def test_kinds_have_the_fields_of_their_schema_and_can_be_read(tmp_path: Path) -> None:
    schema = json.loads((SCHEMAS / "decisions.schema.json").read_text())
    assert list(schema["properties"]) == list(KINDS)
    for kind, known in KINDS.items():
        entry = schema["properties"][kind]["items"]
        fields = [each for each in dataclasses.fields(known) if each.name != "line"]
        assert set(entry["properties"]) == {each.name for each in fields}
        needed = {each.name for each in fields if each.default is dataclasses.MISSING}
        assert set(entry["required"]) == needed
    text = "".join(f"{kind}:\n  - {entry}\n" for kind, entry in COMPLETE.items())
    found = read(text.encode(), tmp_path)
    assert found.problems == ()
    for number, (kind, known) in enumerate(KINDS.items(), 1):
        (entry,) = found.list_all(known)
        assert (type(entry), entry.line) == (known, 2 * number)
        assert found.entries[kind] == (entry,)


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


ROOT = Path("submissions/acme")
RESULT = "acme/results/box/star_shape-mini-closed"
DUE = datetime.date(2026, 6, 30)
SAID = f"path: {RESULT}, who: Jane Doe, on: 2026-07-05, reason: It was measured wrongly."
AGAINST = (
    f"path: {RESULT}, rule: T10, evidence: result_0.txt lacks samples, asked_for: withdraw it, "
    "by: Ann Lee, on: 2026-07-03"
)


@pytest.fixture
def due(star_shape: Definition, monkeypatch: pytest.MonkeyPatch) -> Round:
    """A round that is due on ``DUE``, with one packed submission."""
    judged_in = replace(rounds.load(), due=DUE)
    monkeypatch.setattr(rounds, "load", lambda name=rounds.CURRENT: judged_in)
    write_result(ROOT, star_shape)
    assert pack_submission.main([str(ROOT)]) == 0
    return judged_in


def find(judged_in: Round, decisions: str) -> tuple[list[str], bool, str]:
    (ROOT.parent / "decisions.yaml").write_text(decisions)
    judgement = judge([package.read(ROOT.parent)], judged_in, keep="courses")
    (entry,) = list_entries(judgement.results)
    has_error = any(finding.is_error for finding in judgement.findings)
    codes = [finding.code for finding in judgement.findings if finding.code != "S4.unbound"]
    return codes, has_error, entry.standing.verdict


def test_decisions(due: Round) -> None:
    for entry, codes, has_error, verdict in [
        ("receipts:\n - {path: acme, on: 2026-06-30}", [], False, "scored"),
        ("receipts:\n - {path: acme, on: 2026-07-01}", ["S10.late"], True, "rejected"),
        ("receipts:\n - {path: acme, on: 2026-07-09}\n - {path: acme, on: 2026-06-30}", [], False,
         "scored"),
        (f"withdrawals:\n - {{{SAID}}}", ["S8.withdrawn"], False, "withdrawn"),
        (f"not_confirmed:\n - {{{SAID}}}", ["S13.not_confirmed"], False, "scored"),
        (f"reproduced:\n - {{{SAID}}}", [], False, "scored"),
        (f"objections:\n - {{{AGAINST}}}", ["S11.open"], False, "scored"),
        (f"objections:\n - {{{AGAINST}, verdict: refused}}", [], False, "scored"),
        (f"objections:\n - {{{AGAINST}, verdict: upheld}}", ["S11.upheld"], True, "rejected"),
        (f"objections:\n - {{{AGAINST}, verdict: upheld}}\nwithdrawals:\n - {{{SAID}}}",
         ["S8.withdrawn"], False, "withdrawn"),
        ("receipts:\n - {path: acme, on: 2026-07-01}\nwaivers:\n - {rule: S10, path: acme, "
         "reason: the server was down, who: Jane Doe, until: 2026-06-30}", ["S10.late"], False,
         "scored"),
    ]:  # fmt: skip
        assert find(due, entry) == (codes, has_error, verdict)


def test_what_changed_after_its_receipt_is_a_warning(due: Round) -> None:
    receipt = f"{{path: acme, on: 2026-06-30, manifest: {digest_manifest(ROOT)}}}"
    text = add_receipt("# by Jane\n", receipt)
    assert find(due, text) == ([], False, "scored")
    (ROOT / "LICENSE").write_text("MIT\n")
    assert pack_submission.main([str(ROOT)]) == 0
    assert find(due, text) == (["S10.changed"], False, "scored")
    again = f"{{path: acme, on: 2026-07-02, manifest: {digest_manifest(ROOT)}}}"
    assert find(due, add_receipt(text, again)) == ([], False, "scored")


@pytest.mark.parametrize(
    "before", ["", "# x", "receipts:\n- {path: a, on: 2026-06-30}\nwaivers: []\n"]
)
def test_a_receipt_is_added_to_any_file(before: str, due: Round) -> None:
    text = add_receipt(before, "{path: acme, on: 2026-07-01}")
    assert set(before.splitlines()) < set(text.splitlines())
    assert find(due, text)[0] == ["S10.late"]
