"""`cepheid summary`: one row for each result, the time to train, or why there is none."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from compliance import leaderboard, package, report
from compliance.judge import judge
from rules import rounds
from rules.errors import UserError
from tools.arguments import add_paths, command_parser
from tools.cli import EXIT_FINDINGS, EXIT_FINE, run_tool

EXAMPLES = """\
examples:
  cepheid summary results/first                    a folder that `cepheid run --output` wrote
  cepheid summary submissions                      all submissions, table by table
  cepheid summary results/* --format csv --output scores.csv
  cepheid summary results/first --format json      for a program; null where there is no score

A score is the olympic mean of the times of all required runs, in minutes, with its 95% interval
(rule T20). With fewer runs a result is provisional, and the mean so far stands in brackets. With an
error it is rejected and has no number: `cepheid check` tells each error and how to mend it.
RCP compares the samples to target with those of the reference (rule T21): a factor above 1 says
that the result needs fewer. The score is not multiplied by it.

exit codes: 0 no result is rejected; 1 at least one is; 2 wrong use, for example an empty folder
"""

FORMATS = {
    "table": leaderboard.as_table,
    "csv": leaderboard.as_csv,
    "json": leaderboard.as_json,
    "markdown": leaderboard.as_markdown,
}


def parser() -> argparse.ArgumentParser:
    """The command line of `cepheid summary`."""
    made = command_parser(
        "summary",
        "One row for each result: the time to train, or why there is none.",
        EXAMPLES,
    )
    add = made.add_argument
    add_paths(made, "a result's folder, a submitter's folder, or a folder of those")
    add("--format", default="table", choices=tuple(FORMATS), help="table (default), csv, json, …")
    add("--output", type=Path, metavar="FILE", help="write the rows there instead")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Summarize what the command line names. Exit code 1 where a result is rejected."""
    arguments = parser().parse_args(argv)
    if not arguments.paths:
        raise UserError("summarize what? give a folder, e.g. cepheid summary results/first")
    packages = [package.read(path) for path in arguments.paths]
    judgement = judge(packages, rounds.load())
    rows = leaderboard.rows(judgement)
    report.write(FORMATS[arguments.format](rows), arguments.output)
    is_rejected = any(row.verdict == "rejected" for row in rows)
    return EXIT_FINDINGS if is_rejected else EXIT_FINE


if __name__ == "__main__":
    run_tool(main)
