"""Judge what lies in a folder by the rules of the current round, as the commands do."""

from collections.abc import Sequence
from pathlib import Path

from cepheid.compliance.checks import Place, check_log
from cepheid.compliance.finding import Finding
from cepheid.compliance.judge.judgement import Judgement, judge
from cepheid.compliance.read import package
from cepheid.compliance.read.log import runlog
from cepheid.leaderboard.rows.entry import list_entries
from cepheid.leaderboard.site.view import Site
from cepheid.rules import rounds
from cepheid.rules.definition import Definition
from tests.compliance.builder import Record, write_log


def judge_folder(*paths: Path, with_course: bool = False) -> Judgement:
    """Judge logs, or folders of results or submitters; by default ``out``."""
    packages = [package.read(path) for path in paths or (Path("out"),)]
    return judge(packages, rounds.load(), keep="courses" if with_course else "summaries")


def place_of(chosen: Definition, division: str = "closed") -> Place:
    """Return the place of a log of acme's box in a result."""
    return Place("v1.0", "acme", "box", chosen.name, chosen.scale, division, in_result=True)


ALONE = Place("v1.0")


def check_records(records: Sequence[Record], folder: Path, place: Place = ALONE) -> list[Finding]:
    """Write a log and check it at a place; by default by itself."""
    path = write_log(folder / "result_0.txt", records)
    return check_log(runlog.read(path), place, rounds.load("v1.0"))


def judge_as_mlperf(path: Path, name: str, as_published: bool = False) -> Judgement:
    """Judge logs, or folders of results, by the rules of a round of MLPerf."""
    judged_in = rounds.load(name, as_published)
    return judge([package.read(path, judged_in.layout)], judged_in)


def find_all(path: Path) -> list[Finding]:
    """Find everything that is to be said of a log or folder, but that logs name no code (S4)."""
    return [found for found in judge_folder(path).findings if found.code != "S4.unbound"]


def find_errors(path: Path) -> list[Finding]:
    return [finding for finding in find_all(path) if finding.is_error]


def make_site(*paths: Path, folder: Path = Path("site"), reference: str = "") -> Site:
    judgement = judge_folder(*paths, with_course=True)
    return Site(judgement.round, tuple(list_entries(judgement.results)), folder, reference)
