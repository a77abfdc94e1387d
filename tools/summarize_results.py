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
from cepheid.rules.mlperf.rule_files import use_checkout
from cepheid.tools.console.arguments import read_command
from cepheid.tools.console.program import EXIT_FINDINGS, EXIT_FINE, colour, run_tool
from cepheid.tools.console.tables import write_markdown, write_table

FORMATS: Mapping[str, Callable[[Sequence[Entry]], str]] = {
    "table": write_table,
    "csv": write_csv,
    "json": write_json,
    "markdown": write_markdown,
}


COMMAND = read_command("summary")


def main(argv: Sequence[str] | None = None) -> int:
    """Summarize what the command line names. Exit code 1 where a result is rejected."""
    arguments = COMMAND.parse(argv)
    if not arguments.paths:
        raise UserError("no path given; give a folder, for example cepheid summary results/first")
    extras.require("numpy", "scipy")
    use_checkout(arguments.rules)
    judged_in = rounds.load(arguments.round, arguments.published)
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
