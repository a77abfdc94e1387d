"""A round as docs/organisers.md leads through it, and one whose day is not decided yet."""

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from cepheid.leaderboard.build import make_site_files
from cepheid.rules import definition, rounds
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError
from cepheid.rules.host import ROOT
from cepheid.tools import cli
from cepheid.tools.round import publication
from tests import assert_refused
from tests.checkout import ROOMS, copy_folders
from tests.compliance import small
from tests.compliance.asserting import Patch, Printed
from tests.compliance.builder import SYSTEM, derive_seed_of, write_result
from tests.compliance.judging import make_site

GUIDE = ROOT / "docs" / "organisers.md"
LEFT_BEHIND = 1  # the exit code of carry where a result must be run again


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: Patch) -> Path:
    """A checkout with three packed submissions and a key, and made-up benchmarks."""
    root = tmp_path / "cepheid"
    copy_folders(root, ("cepheid", *ROOMS))
    for name in ("LICENSE", "setup.cfg"):
        shutil.copy(ROOT / name, root / name)
    shape = small.install(tmp_path / "benchmarks", monkeypatch)
    images = definition.load("star_images", "mini")
    for submitter in ("acme", "late"):
        system = {**SYSTEM, "submitter": submitter}
        write_result(root / "submissions" / submitter, shape, system=system)
    write_result(root / "submissions" / "acme", images)
    copied = root / "submissions" / "copycat"
    shutil.copytree(root / "submissions" / "acme", copied)
    seeds = [  # who copies must at least change the seeds, which follow from the submitter's name
        [str(derive_seed_of(shape, index, {**SYSTEM, "submitter": who})) for index in range(5)]
        for who in ("acme", "copycat")
    ]
    changes = {'"acme"': '"copycat"', **dict(zip(*seeds, strict=True))}
    for path in (path for path in copied.rglob("*") if path.is_file()):
        text = path.read_text()
        for old, new in changes.items():
            text = text.replace(old, new)
        path.write_text(text)
    shutil.rmtree(copied / "results" / "box" / "star_images-mini-closed")
    shutil.rmtree(copied / "benchmarks" / "star_images")
    programs = tmp_path / "bin"
    programs.mkdir()
    start = "from cepheid.tools.cli import console\nconsole()\n"
    (programs / "cepheid").write_text(f"#!{sys.executable}\n{start}")
    (programs / "cepheid").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.setenv("HOME", str(tmp_path))
    for submitter in ("acme", "late", "copycat"):
        assert run(f"cepheid pack submissions/{submitter}", root).returncode == 0
    key = tmp_path / ".ssh" / "id_ed25519"
    key.parent.mkdir()
    run(f"ssh-keygen -q -t ed25519 -N '' -f {key}", root)
    (root / "allowed_signers").write_text(f"organisers {key.with_suffix('.pub').read_text()}")
    return root


def run(line: str, root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", "-c", line], cwd=root, capture_output=True, text=True)


@pytest.mark.promise
def test_the_guide_of_the_organisers_leads_through_a_round(checkout: Path, tmp_path: Path) -> None:
    said: dict[str, str] = {}
    blocks = re.findall(r"^```(sh|yaml)\n(.*?)^```", GUIDE.read_text("utf-8"), re.M | re.S)
    for kind, text in blocks:
        if kind == "yaml":
            place, content = text.removeprefix("# ").split("\n", 1)
            with (checkout / place).open("a") as file:
                file.write(content)
            continue
        for line in text.splitlines():
            if "--round v1.0 --output" in line:  # between the rounds a target changes
                tighten(tmp_path / "benchmarks" / "star_shape" / "benchmark.yaml")
            done = run(line, checkout)
            assert done.returncode in (0, LEFT_BEHIND), f"{line}\n{done.stdout}{done.stderr}"
            assert "Traceback" not in done.stderr, f"{line}\n{done.stderr}"
            said[line] = done.stdout
    status = said["cepheid round status submissions"]
    assert re.search(r"^late +2026-07-01 \(late\) +1 rejected +S10: 1", status, re.MULTILINE)
    assert re.search(r"^acme +2026-06-28 ", status, re.MULTILINE)
    site = checkout / "v1.0" / "site"
    verdicts = {
        result["id"]: result["verdict"]
        for result in json.loads((site / "results.json").read_text())["results"]
    }
    assert verdicts["acme/box/star_images-mini-closed"] == "withdrawn"
    assert verdicts["late/box/star_shape-mini-closed"] == "rejected"
    page = (site / "results" / "acme" / "box" / "star_images-mini-closed.html").read_text()
    assert "The weights were those of another benchmark." in page
    assert "Cite this result" in page
    assert "published 2026-08-04" in page
    (withdrawal,) = json.loads((site / "changes.json").read_text())
    assert withdrawal["on"] == "2026-09-02"
    decisions = (site / "decisions.html").read_text()
    assert "Two runs on one machine never have equal times." in decisions
    carried = next(text for line, text in said.items() if "round carry" in line)
    assert "run again: star_shape-mini-closed (T14.definition)" in carried
    assert "carried: star_images-mini-closed" in carried
    assert not hides(checkout / "preview", ("acme", "copycat", "late/", "box", "CPU 9000"))


def tighten(path: Path) -> None:
    """Change a target, as a new round may."""
    document = yaml.safe_load(path.read_text())
    document["scales"]["mini"]["targets"]["rmse"] /= 1e3
    path.write_text(yaml.safe_dump(document))


def hides(folder: Path, names: tuple[str, ...]) -> list[str]:
    """Return where a folder shows a name that it must not."""
    static = ("site.css", "site.js", "compare.js", "costs.js", "glossary.html", "elsewhere.html")
    return [
        f"{path}: {name}"
        for path in folder.rglob("*")
        if path.is_file() and path.name not in static and not path.name.endswith("schema.json")
        if path.parent.name != "vendor"
        for name in names
        if re.search(rf"\b{re.escape(name)}", path.read_text())
    ]


SENTENCE = "v1.0 has no date yet: until the organisers announce the day D (S10)"
ROUND = rounds.load("v1.0")
UNDECIDED = replace(ROUND, due=None)


@pytest.fixture
def submissions(star_shape: Definition, monkeypatch: Patch) -> Path:
    """A submission to a round that has no date."""
    monkeypatch.setattr(rounds, "load", lambda name="v1.0", as_published=False: UNDECIDED)
    write_result(Path("submissions", "acme"), star_shape)
    return Path("submissions")


def test_every_command_says_that_there_is_no_date(submissions: Path, capsys: Printed) -> None:
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


def test_with_a_date_or_in_a_round_of_mlperf_nothing_is_said() -> None:
    known = [rounds.load(name) for name in rounds.names() if name.startswith("mlperf")]
    for decided in (replace(ROUND, due=datetime.date(2026, 6, 30)), *known):
        assert decided.undecided == ""
        assert "no date" not in "".join(publication.list_open_questions(decided))
    assert not any(list(publication.list_open_questions(one)) for one in known)


@pytest.mark.parametrize("key", ["due", "published"])
@pytest.mark.parametrize("day", ['"2026-06-30"', "soon", "2026-13-01", "2026-06-30 12:00:00", "7"])
def test_what_is_no_day_is_refused(key: str, day: str, tmp_path: Path, monkeypatch: Patch) -> None:
    text = (rounds.FOLDER / "v1.0.yaml").read_text(encoding="utf-8")
    (tmp_path / "v7.0.yaml").write_text(
        text.replace("name: v1.0", "name: v7.0") + f"{key}: {day}\n", encoding="utf-8"
    )
    monkeypatch.setattr(rounds, "FOLDER", tmp_path)
    assert_refused(r"v7\.0\.yaml: .*fix: ", rounds.load, "v7.0")


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
