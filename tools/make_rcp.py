"""`cepheid rcp`: measure how many samples the reference needs to its targets, by batch size."""

import argparse
from collections.abc import Sequence

from cepheid.compliance.score import convergence
from cepheid.rules import definition as definitions
from cepheid.rules import extras, rcp
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError
from cepheid.rules.rcp import BATCH_SIZE, Point, ReferencePoints
from cepheid.tools.console.arguments import (
    add_benchmark,
    add_data_option,
    add_set_option,
    make_command_parser,
)
from cepheid.tools.console.program import EXIT_FINDINGS, EXIT_FINE, run_tool

DESCRIPTION = """\
Train the reference with several seeds at each batch size, and record in benchmarks/<name>/rcp.json
how many samples it needs to its targets. A closed result is compared with these reference
convergence points (rule T21).

Each run is recorded as it ends, and a run that is recorded for this definition is not made again:
the same command continues after an interruption. Runs with all defaults are taken from what
`cepheid measure targets` recorded. Without --batch-size the command prints what is recorded.
"""

EXAMPLES = """\
examples:
  cepheid rcp galaxy_shape --scale mini
      print what is recorded, and what is missing
  cepheid rcp galaxy_shape --scale mini --batch-size 32
      seeds 1 to 5 at the default batch size
  cepheid rcp galaxy_shape --scale mini --batch-size 64 --set opt_base_learning_rate=2e-3
      another batch size with a learning rate of its own, which is recorded too

exit codes: 0 every run reached the targets; 1 a run did not, or was interrupted; 2 wrong use
"""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of `cepheid rcp`."""
    parser = make_command_parser("rcp", DESCRIPTION, EXAMPLES)
    add_benchmark(parser)
    add = parser.add_argument
    add(
        "--batch-size",
        type=int,
        nargs="+",
        default=[],
        metavar="B",
        dest="batch_sizes",
        help="the global batch sizes to measure",
    )
    add(
        "--runs",
        type=int,
        default=rcp.RUNS_REQUIRED,
        metavar="N",
        help="seeds 1 … N of each batch size (default: %(default)s)",
    )
    add_set_option(
        parser, "a hyperparameter for these batch sizes, or precision=fp32|bf16, compile=on|off"
    )
    add_data_option(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what is missing and print the table; exit code 1 if a run missed its targets."""
    from cepheid.reference.run.config import parse_override

    arguments = make_parser().parse_args(argv)
    definition = definitions.load(arguments.benchmark, arguments.scale)
    if definition.kind != "train":
        raise UserError(
            f"{definition.name} generates and does not train, so it has no reference convergence "
            "points (rule T21 is for training)"
        )
    if arguments.runs < 1:
        raise UserError(f"--runs {arguments.runs}: expected 1 or more")
    if arguments.overrides and not arguments.batch_sizes:
        raise UserError("--set needs --batch-size B: it is for a measurement")
    if any(parse_override(override)[0] == BATCH_SIZE for override in arguments.overrides):
        raise UserError(f"--set {BATCH_SIZE}: give the batch sizes with --batch-size")
    if arguments.batch_sizes:
        extras.require_for_runs(definition.extras)
        _measure(definition, arguments)
    points = rcp.load(definition.name, definition.scale)
    if points is None:
        print(
            f"{definition.name}, {definition.scale} scale: nothing is recorded yet; "
            "--batch-size B measures it"
        )
        return EXIT_FINE
    print(_format_table(points, definition))
    for problem in rcp.find_problems(points, definition):
        print(f"problem: {problem}")
    has_missed = any(len(point.samples) < len(point.runs) for point in points.points)
    return EXIT_FINDINGS if has_missed else EXIT_FINE


def _measure(definition: Definition, arguments: argparse.Namespace) -> None:
    from cepheid.measure.studies import convergence_points
    from cepheid.tools.console.terminal import Terminal

    request = convergence_points.Request(
        arguments.batch_sizes, arguments.runs, arguments.data, arguments.overrides
    )
    convergence_points.measure_missing(definition, request, Terminal())


def _format_table(points: ReferencePoints, definition: Definition) -> str:
    """Return a line per batch size, with the smallest plausible mean of a result (rule T21)."""
    from tabulate import tabulate

    expected = {entry.batch_size: entry for entry in convergence.list_expected(points, definition)}
    body = []
    for point in points.points:
        plausible = expected.get(point.batch_size)
        epochs = [run.epochs for run in point.runs if run.samples_to_target is not None]
        body.append(
            [
                point.batch_size,
                f"{len(point.samples)} of {len(point.runs)}",
                _format_range(point.samples, ",d"),
                f"{plausible.mean:,.0f}" if plausible else "",
                f"{plausible.least:,.0f}" if plausible else "",
                _format_range(epochs, ".2f"),
                _list_changes(point, definition),
            ]
        )
    header = (
        "batch size", "reached", "samples to target", "mean", "smallest plausible", "epochs", "set",
    )  # fmt: skip
    targets = " and ".join(map(str, definition.quality))
    title = f"{definition.name}, {definition.scale} scale: {targets}"
    return f"{title}\n\n{tabulate(body, header, tablefmt='simple', disable_numparse=True)}\n"


def _format_range(values: Sequence[float], form: str) -> str:
    """Return the smallest and the largest value, or the only one."""
    ends = sorted({min(values), max(values)}) if values else []
    return " to ".join(format(value, form) for value in ends)


def _list_changes(point: Point, definition: Definition) -> str:
    """Return the hyperparameters other than the defaults, without the batch size."""
    defaults = {name: rule.default for name, rule in definition.hyperparameters.items()}
    return " ".join(
        f"{name}={value}"
        for name, value in point.hyperparameters.items()
        if name != BATCH_SIZE and defaults.get(name) != value
    )


if __name__ == "__main__":
    run_tool(main)
