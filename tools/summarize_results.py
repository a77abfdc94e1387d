"""`cepheid summary`: one row for each result, the time to train, or why there is none."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

if __package__ in (None, ""):  # run as a file of a checkout that is not installed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from cepheid.compliance.failure import isolate
from cepheid.compliance.judge.judgement import JudgedResult, judge, strip_result
from cepheid.compliance.read import package
from cepheid.compliance.report import formats as report
from cepheid.leaderboard.rows.data import write_csv, write_json
from cepheid.leaderboard.rows.entry import Entry, list_rows
from cepheid.rules import extras, rounds
from cepheid.rules.errors import UserError
from cepheid.tools.console.arguments import Command, declare, offer_paths, offer_round
from cepheid.tools.console.program import EXIT_FINDINGS, EXIT_FINE, colour, run_tool
from cepheid.tools.console.tables import write_markdown, write_table

EXAMPLES = """\
examples:
  cepheid summary results/first                    a folder that `cepheid run --output` wrote
  cepheid summary submissions                      all submissions, table by table
  cepheid summary results/* --format csv --output scores.csv
  cepheid summary results/first --format json      for a program; null where there is no score
  cepheid summary training_results_v4.0 --round mlperf-training-4.0
      published results of MLPerf: a submitter's folder, a result, or all of them

A score is the time per sample of all required runs, times the samples that the reference needs at
that batch size, with its 95% interval (rule T20). What converges later than the
reference is charged with its own samples. Without reference points, and in the open division, there
is only the time to train, the mean of the runs without the fastest and the slowest. A result with
fewer runs is provisional, and its mean time so far is in brackets. A result with an error is
rejected and has no number: `cepheid check` lists each error with its fix.
In rounds of MLPerf, which are history, the score is the time to train beside its verdict. A run
that did not converge counts as the slowest, and its time is never averaged: Google's ResNet-50 on
tpu-v3-1024 in v0.6 has 2.304 minutes, not 2.273.
A table has the width of the terminal, or 80 columns: columns that say nothing are left out, others
stand below where they do not fit. All numbers of a table have the unit that its head names.
RCP compares the samples to target with those of the reference (rule T21): equal, or late if the
score is charged. A factor above 1 means that the result needs fewer samples.
The resolution is the smallest true difference from another such result that is seen with a
probability of 0.8.

exit codes: 0 no result is rejected; 1 at least one is; 2 wrong use, for example an empty folder
"""

FORMATS: Mapping[str, Callable[[Sequence[Entry]], str]] = {
    "table": write_table,
    "csv": write_csv,
    "json": write_json,
    "markdown": write_markdown,
}


COMMAND = Command(
    "summary",
    "One row for each result: score and time to train, or why there is none.",
    EXAMPLES,
    (
        offer_paths(),
        offer_round(),
        declare(
            "--format", "table (default), csv, json, …", default="table", choices=tuple(FORMATS)
        ),
        declare("--output", "write the rows there instead", Path, "FILE"),
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Summarize what the command line names. Exit code 1 where a result is rejected."""
    arguments = COMMAND.parse(argv)
    if not arguments.paths:
        raise UserError("no path given; give a folder, for example cepheid summary results/first")
    extras.require("numpy", "scipy")
    judged_in = rounds.load(arguments.round)
    packages = [package.read(path, judged_in.layout) for path in arguments.paths]
    judgement = judge(packages, judged_in)
    if not judgement.results:
        raise UserError("no result was found, so there is nothing to summarize")

    def make(results: Sequence[JudgedResult]) -> tuple[bool, str]:
        rows = list_rows(results)
        return any(row.standing.has_failed for row in rows), FORMATS[arguments.format](rows)

    (is_rejected, text), _ = isolate(judgement.results, make, strip_result)
    if arguments.format == "table":
        text = colour(text, arguments.output)
    report.write_report(text, arguments.output)
    return EXIT_FINDINGS if is_rejected else EXIT_FINE


if __name__ == "__main__":
    run_tool(main)
