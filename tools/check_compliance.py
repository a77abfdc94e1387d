"""`cepheid check`: check run logs and submissions against the rules."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from compliance import package, report
from compliance.finding import has_error
from compliance.judge import judge
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
  cepheid check --explain T8                       what rule T8 says, and why

A finding names the file, the line, the rule, what was expected, what is there, and how to mend it.
Errors reject a result; warnings and notes do not.

exit codes: 0 no error; 1 at least one error; 2 wrong use, for example a path that is not there
"""


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
    add("--format", default="text", choices=("text", "json"), help="text (default) or json")
    add("--output", type=Path, metavar="FILE", help="write the findings there instead")
    add("--explain", metavar="RULE", help="print what a rule says, for example T8, then stop")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Check what the command line names. Exit code 1 where there is an error."""
    arguments = parser().parse_args(argv)
    if arguments.explain:
        print(report.explain(arguments.explain))
        return EXIT_FINE
    if not arguments.paths:
        raise UserError("check what? give a run log or a folder, e.g. cepheid check results/first")
    judged_in = rounds.load(arguments.round)
    judgement = judge([package.read(path, judged_in.layout) for path in arguments.paths], judged_in)
    if arguments.format == "json":
        text = report.report_json(judgement.findings, judgement.logs, judgement.round)
    else:
        text = report.report_text(judgement.findings, judgement.logs)
    report.write(text, arguments.output)
    return EXIT_FINDINGS if has_error(judgement.findings) else EXIT_FINE


if __name__ == "__main__":
    run_tool(main)
