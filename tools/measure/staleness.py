"""`cepheid measure staleness`: how asynchronous SGD trains, by how old its gradients are."""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from cepheid.measure.studies import staleness
from cepheid.measure.studies.staleness import Arm, Request
from cepheid.rules import definition as definitions
from cepheid.rules import extras
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError
from cepheid.tools.console.arguments import (
    add_benchmark,
    add_data_option,
    add_set_option,
    make_command_parser,
)
from cepheid.tools.console.program import EXIT_FINDINGS, EXIT_FINE, run_tool

DESCRIPTION = """\
In asynchronous SGD the workers do not wait for each other: each sends its gradient to a parameter
server and continues with the weights that the server has at that moment. By the time a gradient
arrives, other workers have changed the weights, so it is stale: computed with older weights than
those that it changes.

This command trains the reference with gradients that are K updates old, as K + 1 workers in turns
make them, and shows what staleness costs in samples and quality. The server is simulated: a seed
always gives the same run, on any number of ranks up to rounding, and no time is saved or measured.
Delay 0 is the usual, synchronous run. The rest changes the mathematics, which is for the open
division.

Each run is recorded in benchmarks/<name>/staleness.json as it ends, and the same command makes the
missing ones.
"""
EXAMPLES = """\
examples:
  cepheid measure staleness galaxy_shape --figure staleness.png
  cepheid measure staleness galaxy_shape --delays 16 --set opt_base_learning_rate=5e-4

exit codes: 0 fine; 1 a run missed the targets; 2 wrong use
"""
DELAYS, SEEDS = (0, 1, 4, 16), (1, 2, 3)
MOST_UPDATES = 1000  # each keeps a copy of the weights


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of `cepheid measure staleness`."""
    parser = make_command_parser("measure staleness", DESCRIPTION, EXAMPLES)
    add_benchmark(parser, "which benchmark; it must train")
    add = parser.add_argument
    add(
        "--delays",
        type=int,
        nargs="+",
        default=DELAYS,
        metavar="K",
        help="ages of the gradients, in updates (default: 0 1 4 16)",
    )
    add(
        "--seeds",
        type=int,
        nargs="+",
        default=SEEDS,
        metavar="N",
        help="seeds of each delay (default: 1 2 3)",
    )
    add("--figure", type=Path, metavar="FILE.png", help="draw a figure too")
    add_set_option(parser, "a hyperparameter for all delays, or an execution setting")
    add_data_option(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what is missing, print a table, draw a figure."""
    arguments = make_parser().parse_args(argv)
    definition = definitions.load(arguments.benchmark, arguments.scale)
    if definition.kind != "train":
        raise UserError(
            f"{definition.name} generates and does not train, so it has no gradients to delay"
        )
    delays = sorted(set(arguments.delays))
    if not 0 <= delays[0] <= delays[-1] <= MOST_UPDATES:
        given = " ".join(map(str, arguments.delays))
        raise UserError(f"--delays {given}: expected numbers of updates from 0 to {MOST_UPDATES:,}")
    extras.require_for_runs(definition.extras)

    from tabulate import tabulate

    from cepheid.tools.console.terminal import Terminal

    seeds = sorted(set(arguments.seeds))
    request = Request(delays, seeds, arguments.data, arguments.overrides)
    arms = staleness.measure_missing(definition, request, Terminal())
    print(f"samples to {' and '.join(map(str, definition.quality))}, by the age of the gradients\n")
    print(tabulate(_make_rows(definition, arms), headers="keys", disable_numparse=True))
    if arguments.figure:
        from cepheid.measure.studies.staleness_figure import draw_staleness

        draw_staleness(arguments.figure, definition, arms)
    missed = any(len(arm.list_samples_to_target(definition)) < len(seeds) for arm in arms)
    return EXIT_FINDINGS if missed else EXIT_FINE


def _make_rows(definition: Definition, arms: Sequence[Arm]) -> list[Mapping[str, str]]:
    common = staleness.find_common_evaluation(definition, arms)
    rows: list[Mapping[str, str]] = []
    for arm in arms:
        reached = arm.list_samples_to_target(definition)
        row = {
            "delay": str(arm.delay),
            "seeds": str(len(arm.curves)),
            "missed": str(len(arm.curves) - len(reached)),
            "samples to target": " ".join(f"{samples:,}" for samples in sorted(reached)),
            "mean": f"{statistics.mean(reached):,.0f}" if reached else "",
        }
        if common is not None:
            row |= {
                f"{target.metric} after {common:,} samples": _describe_spread(
                    arm.list_quality(target.metric, common)
                )
                for target in definition.quality
            }
        rows.append(row)
    return rows


def _describe_spread(values: Sequence[float]) -> str:
    """Return the mean and the standard deviation of some values, as far as they exist."""
    if len(values) < 2:
        return " ".join(f"{value:.4f}" for value in values)
    return f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}"


if __name__ == "__main__":
    run_tool(main)
