"""`cepheid leaderboard`: write the results as a static site."""

import argparse
import datetime
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # run as a file of a checkout that is not installed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from cepheid.compliance.failure import isolate
from cepheid.compliance.finding import escape
from cepheid.compliance.judge.judgement import JudgedResult, judge, strip_result
from cepheid.compliance.judge.unit import use_processes
from cepheid.compliance.read import package
from cepheid.leaderboard.build import make_site_files
from cepheid.leaderboard.rows import index
from cepheid.leaderboard.rows.changes import find_changes
from cepheid.leaderboard.rows.entry import Entry, list_entries
from cepheid.leaderboard.site import evidence
from cepheid.leaderboard.site.history import read_rounds
from cepheid.leaderboard.site.records import write_index
from cepheid.leaderboard.site.view import Site
from cepheid.rules import extras, rounds
from cepheid.rules.errors import UserError
from cepheid.tools.console.arguments import Command, declare, offer_paths, offer_round
from cepheid.tools.console.program import EXIT_FINDINGS, EXIT_FINE, run_tool
from cepheid.tools.leaderboard import folder

EXAMPLES = """\
examples:
  cepheid leaderboard results/first                writes results/first/leaderboard/index.html
  cepheid leaderboard submissions --output site    all submissions, to put on a web server
  cepheid leaderboard results/a results/b --output both     two folders side by side
  cepheid leaderboard training_results_v4.0 --round mlperf-training-4.0 --output v4.0
  cepheid leaderboard submissions --output site --logs copy     with logs and code, to move
  cepheid diff site.old site                       what changed between two builds

The folder links to logs and code where they lie; with --logs copy it holds them as text and needs
nothing else. It opens from a disk and from any web server. results.json holds the same for
programs. A folder of an earlier call is replaced; any other folder is refused. The same results
give the same bytes.

A site without results, or without a result of the site that it replaces, is not written: a folder
may be incomplete or misread. --allow-removal says that results were removed on purpose.

exit codes: 0 no result is rejected; 1 at least one is, its page shows why; 2 wrong use
"""


COMMAND = Command(
    "leaderboard",
    "Write the results as a site: tables, spread of the runs, curves, comparisons.",
    EXAMPLES,
    (
        offer_paths(),
        declare(
            "--output", "the folder to write (default: leaderboard in the first PATH)", Path, "DIR"
        ),
        offer_round(),
        declare(
            "--reference",
            "the system to compare with (default: that of the reference implementation)",
            metavar="SUBMITTER/SYSTEM",
            default="",
        ),
        declare(
            "--logs",
            "where readers find logs and code: as text in the site itself, beside it (default), "
            "or at an address that stands for PATH",
            metavar="copy|link|URL",
        ),
        declare(
            "--history",
            "the site of an earlier round, or its results.json: adds a page of the best results "
            "over the rounds; repeat it for several, the oldest first",
            Path,
            "SITE",
            default=[],
            action="append",
        ),
        declare(
            "--on",
            "the day of this publication: results may be withdrawn after it, and the site lists by "
            "day what changed since the one that it replaces",
            datetime.date.fromisoformat,
            "DAY",
        ),
        declare("--commit", "the commit of the submissions, for results.json", default=""),
        declare(
            "--allow-removal",
            "write the site although results of the one that it replaces are gone, or none is "
            "left: after a withdrawal, or before the first submission of a round",
            bool,
        ),
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the site and print where it is. Exit code 1 where a result is rejected."""
    arguments = COMMAND.parse(argv)
    if not arguments.paths:
        raise UserError("no path given; give a folder: cepheid leaderboard results/first")
    extras.require("jinja2", "markupsafe", "numpy", "scipy")
    output = arguments.output or folder.choose_output(arguments.paths[0])
    entries = _build(arguments, output)
    print(output / "index.html")
    is_rejected = any(entry.standing.has_failed for entry in entries)
    return EXIT_FINDINGS if is_rejected else EXIT_FINE


def _build(arguments: argparse.Namespace, output: Path) -> tuple[Entry, ...]:
    """Judge everything, write the site, and return what it shows."""
    folder.refuse_foreign(output)
    judged_in = rounds.load(arguments.round, as_published=True)
    packages = [
        package.read(path, judged_in.layout, may_be_empty=arguments.allow_removal)
        for path in arguments.paths
    ]
    for path in (stray for one in packages for stray in one.strays):
        print(f"not on the site, because it is no submission: {escape(str(path))}", file=sys.stderr)
    judgement = judge(packages, judged_in, use_processes(None), keep="courses")
    entries, results = isolate(judgement.results, list_entries, strip_result)
    if not arguments.allow_removal:
        folder.refuse_removal(output, entries, arguments.paths)
    _check_reference(arguments.reference, entries)
    logs = evidence.find_evidence(arguments.logs or "link", output, entries, arguments.paths)
    del entries  # they are made again for the site, and what they hold is large
    earlier = tuple(read_rounds([index.read(path) for path in arguments.history]))

    def make(shown: Sequence[JudgedResult]) -> Site:
        made = Site(
            judgement.round,
            tuple(list_entries(shown)),
            output,
            arguments.reference,
            arguments.commit[:64],
            logs,
            earlier,
        )
        return replace(made, changes=_list_changes(output, made, arguments.on))

    def write(shown: Sequence[JudgedResult]) -> tuple[Entry, ...]:
        made = make(shown)
        folder.write(output, make_site_files(made))
        return made.entries

    def rehearse(shown: Sequence[JudgedResult]) -> None:
        for _ in make_site_files(make(shown)):
            pass

    return isolate(results, write, strip_result, rehearse)[0]


def _list_changes(
    output: Path, made: Site, day: datetime.date | None
) -> tuple[Mapping[str, Any], ...]:
    """List what changed since the publication, by day; ``day`` is that of this one."""
    before = index.read_changes(output)
    if day is None or not (output / index.FILE).exists():
        return tuple(before)
    changed = find_changes(index.read(output), json.loads(write_index(made)))
    lines = [line for change in changed for line in str(change).splitlines()]
    fresh = {"on": str(day), "changes": [line.strip() for line in lines]}
    return tuple([fresh, *before] if lines else before)


def _check_reference(asked: str, entries: Sequence[Entry]) -> None:
    known = sorted({entry.system_id for entry in entries if entry.has_score})
    if asked and asked not in known:
        shown = ", ".join(known[:8]) or "none"
        raise UserError(f"--reference {asked}: no such system with a score (there are: {shown})")


if __name__ == "__main__":
    run_tool(main)
