"""`cepheid check`: check run logs and submissions against the rules."""

import argparse
import gc
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

if __package__ in (None, ""):  # run as a file of a checkout that is not installed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from compliance.finding import Finding, has_error, sort_findings
from compliance.judge import parallel
from compliance.judge.judgement import find_place, find_today, judge
from compliance.read import package, waivers
from compliance.report import formats as report
from compliance.report import rulebook
from rules import rounds
from rules.errors import UserError
from tools.arguments import add_paths, command_parser
from tools.cli import EXIT_FINDINGS, EXIT_FINE, run_tool

EXAMPLES = """\
examples:
  cepheid check results/first                      a folder that `cepheid run --output` wrote
  cepheid check results/first/results/*/*/result_0.txt
      one log by itself; one that ended without reaching its targets is an error here
  cepheid check submissions/acme --format json --output findings.json
      for a program: round, verdict, number of logs, and every finding with file and line
  cepheid check training_results_v4.0/acme --round mlperf-training-4.0
      published logs of MLPerf, by the rules of their round (rules/mlperf.md)
  cepheid check submissions --format github        annotations in a pull request on GitHub
  cepheid check submissions --format sarif --output findings.sarif
      the same for any service that reads SARIF 2.1.0
  cepheid check --changed origin/main              the submissions that a branch changes, for CI
  cepheid check --follow results/first/results/box/galaxy_shape-mini-closed/result_0.txt
      while the run goes on: each finding as soon as nothing that follows can mend it
  cepheid check --explain T8                       what rule T8 says, why, and how to comply

A finding names the file, the line, the rule, what was expected, what is there, and how to mend it.
Errors reject a result; warnings and notes do not.

exit codes: 0 no error; 1 at least one error; 2 wrong use, for example a path that is not there
"""

SHOW_PROGRESS_AFTER_SECONDS = 1.0
GARBAGE_OBJECTS = 100_000  # what is read has no cycles: looking for them often only takes time


def parser() -> argparse.ArgumentParser:
    """The command line of `cepheid check`."""
    made = command_parser(
        "check",
        "Check run logs, results and submissions against the rules of a round.",
        EXAMPLES,
    )
    add = made.add_argument
    add_paths(made, "a run log, a result's folder, a submitter's folder, or a folder of those")
    add("--round", default=rounds.CURRENT, help=f"rules to check by (default: {rounds.CURRENT})")
    formats = tuple(report.FORMATS)
    add("--format", default="text", choices=formats, help=f"one of {', '.join(formats)}")
    add("--output", type=Path, metavar="FILE", help="write the findings there instead")
    add("--follow", action="store_true", help="check one run log while it is being written")
    add("--jobs", type=int, metavar="N", help="processes (default: 1 for a few logs, else all)")
    add("--changed", metavar="REVISION", help="check the submissions that differ from it (git)")
    add("--explain", metavar="RULE", help="print what a rule says, for example T8, then stop")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Check what the command line names. Exit code 1 where there is an error."""
    arguments = parser().parse_args(argv)
    if arguments.explain:
        print(rulebook.explain_rule(arguments.explain))
        return EXIT_FINE
    if arguments.changed:
        from tools import changed  # here, because checking what is named needs no git

        arguments.paths = changed.submissions(arguments.changed, arguments.paths)
        if not arguments.paths:
            print(f"no submission differs from {arguments.changed}")
            return EXIT_FINE
    if not arguments.paths:
        raise UserError("check what? give a run log or a folder, e.g. cepheid check results/first")
    if arguments.jobs is not None and arguments.jobs < 1:
        raise UserError(f"--jobs {arguments.jobs}: give the number of processes, 1 or more")
    judged_in = rounds.load(arguments.round)
    gc.set_threshold(GARBAGE_OBJECTS)
    if arguments.follow:
        return _follow(arguments, judged_in)
    packages = [package.read(path, judged_in.layout) for path in arguments.paths]
    with _Progress() as progress:
        judgement = judge(packages, judged_in, parallel.use_processes(arguments.jobs, progress))
    text = report.FORMATS[arguments.format](judgement.findings, judgement.logs, judgement.round)
    report.write_report(text, arguments.output)
    return EXIT_FINDINGS if has_error(judgement.findings) else EXIT_FINE


def _follow(arguments: argparse.Namespace, judged_in: rounds.Round) -> int:
    """Check one log while it grows: text and workflow commands come at once, others at the end."""
    from compliance.judge.follow import (
        follow_log,  # here, because checking what is there needs none of it
    )

    path = _one_log(arguments.paths)
    who = package.find_around_log(path, judged_in.layout)
    place = find_place(who.results[0], who, judged_in)
    print_now = report.ONE_BY_ONE.get(arguments.format) if arguments.output is None else None
    interrupted, today = threading.Event(), find_today()
    before = signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    found: list[Finding] = []
    try:
        for certain in follow_log(path, place, judged_in, _tell, interrupted.wait):
            (finding,) = waivers.apply_waivers([certain], who.waivers, who.path, judged_in, today)
            found.append(finding)
            if print_now:
                print(print_now(finding), flush=True)
    finally:
        signal.signal(signal.SIGINT, before)
    if print_now:
        print(report.format_verdict(found, 1))
    else:
        text = report.FORMATS[arguments.format](sort_findings(found), 1, judged_in.name)
        report.write_report(text, arguments.output)
    return EXIT_FINDINGS if has_error(found) else EXIT_FINE


def _one_log(paths: Sequence[Path]) -> Path:
    if len(paths) > 1:
        raise UserError(f"--follow takes one run log, not {len(paths)}; start one for each")
    (path,) = paths
    if path.is_dir():
        going_on = sorted(path.rglob("*.partial"))
        guess = f", for example {going_on[0]}" if going_on else " that is, or will be, written"
        raise UserError(f"{path} is a folder; --follow takes the run log itself{guess}")
    return path


def _tell(text: str) -> None:
    print(f"cepheid: {text}", file=sys.stderr, flush=True)


class _Progress:
    """How many logs are judged, on a terminal and for long work only. (Not `rich`, which takes as
    long to import as checking a log takes.)"""

    def __init__(self) -> None:
        self.started = self.told = time.monotonic()
        self.is_shown = False

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        is_long = now - self.started > SHOW_PROGRESS_AFTER_SECONDS
        if is_long and now - self.told > 0.1 and sys.stderr.isatty():
            self.told, self.is_shown = now, True
            print(f"\rchecked {done:,} of {total:,} logs", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *exception: object) -> None:
        if self.is_shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    run_tool(main)
