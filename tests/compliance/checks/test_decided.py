"""What organisers decide about results has its effect (S8, S10, S11, S13)."""

import datetime
from dataclasses import replace
from pathlib import Path

import pytest

from cepheid.compliance.checks.submission.decided import digest_manifest
from cepheid.compliance.judge.judgement import judge
from cepheid.compliance.read import package
from cepheid.leaderboard.rows.entry import list_entries
from cepheid.rules import rounds
from cepheid.rules.definition import Definition
from cepheid.rules.rounds import Round
from cepheid.tools import pack_submission
from cepheid.tools.round.records import add_receipt
from tests.compliance.builder import write_result

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


@pytest.mark.parametrize(
    ("entry", "codes", "has_error", "verdict"),
    [
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
    ],
)  # fmt: skip
def test_decisions(entry: str, codes: list[str], has_error: bool, verdict: str, due: Round) -> None:
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
