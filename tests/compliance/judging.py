"""Judge what lies in a folder by the rules of the current round, as the commands do."""

from pathlib import Path

from cepheid.compliance.finding import Finding
from cepheid.compliance.judge.judgement import Judgement, judge
from cepheid.compliance.read import package
from cepheid.leaderboard.rows.entry import list_entries
from cepheid.leaderboard.site.view import Site
from cepheid.rules import rounds


def judge_folder(*paths: Path, with_course: bool = False) -> Judgement:
    """Judge logs, or folders of results or submitters; by default ``out``."""
    packages = [package.read(path) for path in paths or (Path("out"),)]
    return judge(packages, rounds.load(), keep="courses" if with_course else "summaries")


def find_all(path: Path) -> list[Finding]:
    """Find everything that is to be said of a log or folder, but that logs name no code (S4)."""
    return [found for found in judge_folder(path).findings if found.code != "S4.unbound"]


def find_errors(path: Path) -> list[Finding]:
    return [finding for finding in find_all(path) if finding.is_error]


def make_site(*paths: Path, folder: Path = Path("site"), reference: str = "") -> Site:
    judgement = judge_folder(*paths, with_course=True)
    return Site(judgement.round, tuple(list_entries(judgement.results)), folder, reference)
