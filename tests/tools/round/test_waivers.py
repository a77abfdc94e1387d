"""Waivers that an earlier version kept in a submitter's folder, moved to where they count."""

from pathlib import Path

import pytest

from cepheid.compliance.read import decisions
from cepheid.compliance.read.decisions import Waiver, Withdrawal
from cepheid.rules.errors import UserError
from cepheid.tools import manage_round

OLD = """\
waivers:
  - {rule: T10, path: results/box, reason: 'the loader: "drops" one',
     who: Jane Doe, until: 2026-12-31}
"""
KEPT = """\
# decided in Ghent
withdrawals:
  - {path: beta, reason: measured wrongly, who: Jane Doe, on: 2026-11-01}
"""
OURS = """\
waivers:  # of the first week
  - {rule: T8, path: beta, reason: it was late, who: Jane Doe, until: 2026-12-31}
"""
ACME = Path("submissions/acme")


@pytest.fixture(autouse=True)
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ACME.mkdir(parents=True)
    (ACME / "waivers.yaml").write_text(OLD)


@pytest.mark.parametrize("there", ["", KEPT, OURS, KEPT + OURS, OURS + KEPT])
def test_waivers_are_moved_beside_what_is_there(there: str) -> None:
    target = ACME.parent / "decisions.yaml"
    if there:
        target.write_text(there)
    assert manage_round.main(["move-waivers", str(ACME)]) == 0
    found = decisions.read(target)
    assert found.problems == ()
    first, *others = found.list_all(Waiver)
    assert (str(first.path), first.rule) == ("acme/results/box", "T10")
    assert (first.reason, first.until.isoformat()) == ('the loader: "drops" one', "2026-12-31")
    assert [waiver.rule for waiver in others] == (["T8"] if OURS in there else [])
    assert len(found.list_all(Withdrawal)) == (KEPT in there)
    assert all(line in target.read_text() for line in there.splitlines())
    assert not (ACME / "waivers.yaml").exists()
    with pytest.raises(UserError, match="nothing to move"):
        manage_round.main(["move-waivers", str(ACME)])


@pytest.mark.parametrize("there", ["waivers: []\n", "wishes: []\n", "[\n"])
def test_nothing_is_lost_where_the_waivers_cannot_be_put(there: str) -> None:
    (ACME.parent / "decisions.yaml").write_text(there)
    with pytest.raises(UserError):
        manage_round.main(["move-waivers", str(ACME)])
    assert (ACME.parent / "decisions.yaml").read_text() == there
    assert (ACME / "waivers.yaml").read_text() == OLD


def test_a_waiver_that_cannot_be_read_is_not_moved() -> None:
    (ACME / "waivers.yaml").write_text(OLD.replace("T10", "ten"))
    with pytest.raises(UserError, match=r"waivers\.yaml:2: rule"):
        manage_round.main(["move-waivers", str(ACME)])
    with pytest.raises(UserError, match="not the folder of a submitter"):
        manage_round.main(["move-waivers", "submissions"])
