"""A round whose day is not decided: every command says so in a sentence, and none fails."""

import argparse
import datetime
import json
from dataclasses import replace
from pathlib import Path

import pytest

from cepheid.leaderboard.build import make_site_files
from cepheid.rules import rounds
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError
from cepheid.tools import cli
from cepheid.tools.round import publication
from tests.compliance.builder import write_result
from tests.compliance.judging import make_site

SENTENCE = "v1.0 has no date yet: until the organisers announce the day D (S10)"
ROUND = rounds.load("v1.0")
UNDECIDED = replace(ROUND, due=None)


@pytest.fixture
def submissions(star_shape: Definition, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A submission to a round that has no date."""
    monkeypatch.setattr(rounds, "load", lambda name="v1.0", as_published=False: UNDECIDED)
    write_result(Path("submissions", "acme"), star_shape)
    return Path("submissions")


def test_every_command_says_that_there_is_no_date(
    submissions: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (
        ("receive", "submissions/acme", "--on", "2026-06-28"),
        ("status", "submissions"),
        ("publish", "submissions", "--output", "v1.0"),
    ):
        assert cli.main(["round", *words]) == 0
        printed = "".join(capsys.readouterr())
        assert SENTENCE in printed, words
        assert "fix: organisers, write due:" in printed
    assert "the definitions of v1.0 are not frozen" in printed
    assert cli.main(["round", "status", "submissions", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["due"] is None
    files = dict(make_site_files(make_site(submissions)))
    assert SENTENCE in files["decisions.html"].decode()


def test_with_a_date_nothing_is_said(submissions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decided = replace(ROUND, due=datetime.date(2026, 6, 30))
    assert decided.undecided == ""
    assert "no date" not in "".join(publication.list_open_questions(decided))


def test_a_round_of_mlperf_needs_no_date_of_ours() -> None:
    known = [name for name in rounds.names() if name.startswith("mlperf")]
    for name in known:
        assert rounds.load(name).undecided == ""
        assert list(publication.list_open_questions(rounds.load(name))) == []


@pytest.mark.parametrize("key", ["due", "published"])
@pytest.mark.parametrize("day", ['"2026-06-30"', "soon", "2026-13-01", "2026-06-30 12:00:00", "7"])
def test_what_is_no_day_is_refused_with_its_place(
    key: str, day: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (rounds.FOLDER / "v1.0.yaml").read_text(encoding="utf-8")
    (tmp_path / "v7.0.yaml").write_text(
        text.replace("name: v1.0", "name: v7.0") + f"{key}: {day}\n", encoding="utf-8"
    )
    monkeypatch.setattr(rounds, "FOLDER", tmp_path)
    with pytest.raises(UserError, match=r"v7\.0\.yaml: .*fix: "):
        rounds.load("v7.0")


def test_a_publication_that_is_refused_keeps_the_digests_of_the_last_one(tmp_path: Path) -> None:
    for name in (publication.SUMS, publication.SIGNATURE):
        (tmp_path / name).write_text("of the last one")

    def refuse(argv: object = None) -> int:
        raise UserError("no result was found")

    arguments = argparse.Namespace(
        output=tmp_path, path=tmp_path, round="v1.0", on="2026-08-04", commit="", sign=None
    )
    with pytest.raises(UserError):
        publication.publish(arguments, refuse)
    assert (tmp_path / publication.SUMS).read_text() == "of the last one"
    assert (tmp_path / publication.SIGNATURE).exists()
