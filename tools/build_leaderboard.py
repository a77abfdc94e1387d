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
from cepheid.rules.mlperf.rule_files import use_checkout
from cepheid.tools.console.arguments import read_command
from cepheid.tools.console.program import EXIT_FINDINGS, EXIT_FINE, run_tool
from cepheid.tools.leaderboard import folder

COMMAND = read_command("leaderboard")


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
    use_checkout(arguments.rules)
    judged_in = rounds.load(arguments.round, as_published=True)
    form, may_be_empty = judged_in.layout, arguments.allow_removal
    packages = [package.read(path, form, may_be_empty) for path in arguments.paths]
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

    reference, commit = arguments.reference, arguments.commit[:64]

    def make(shown: Sequence[JudgedResult]) -> Site:
        entries = tuple(list_entries(shown))
        made = Site(judgement.round, entries, output, reference, commit, logs, earlier)
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
