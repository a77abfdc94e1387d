"""`cepheid measure targets`: measure that targets separate correct from broken implementations."""

import argparse
from collections.abc import Sequence

from cepheid.benchmarks import registry
from cepheid.benchmarks.registry import import_task
from cepheid.rules import definition as definitions
from cepheid.rules import evidence, extras
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError, did_you_mean
from cepheid.rules.evidence import Curve, Evidence
from cepheid.tools.console.arguments import add_benchmark, add_data_option, make_command_parser
from cepheid.tools.console.program import EXIT_FINDINGS, EXIT_FINE, run_tool

DESCRIPTION = """\
Train the reference with several seeds, and each broken variant (shuffled labels, frozen weights, …)
through its full budget. Record the quality curves in benchmarks/<name>/evidence.json. A benchmark
that generates is judged once a run. The last lines say whether the seeds are enough: how probably
one more misses, and how far the nearest broken run stays from the targets.

The tests accept the targets of a benchmark only with such evidence for the same definition. Each
run is recorded as it ends, and a run that is recorded for this definition is not made again: the
same command continues after an interruption. Several commands may share the work, on one
kind of machine: each makes the variants that --only names.
"""
EXAMPLES = """\
example:
  cepheid measure targets galaxy_shape --scale mini
  cepheid measure targets galaxy_shape --scale full --only correct
  cepheid measure targets galaxy_shape --scale full --only frozen      # at the same time

exit codes: 0 the targets separate correct from broken; 1 they do not, or runs are still missing;
2 wrong use
"""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of `cepheid measure targets`."""
    parser = make_command_parser("measure targets", DESCRIPTION, EXAMPLES)
    add_benchmark(parser)
    add = parser.add_argument
    add(
        "--seeds",
        type=int,
        metavar="N",
        help="seeds 1 … N of the correct model (default: 10 at mini, 5 at full scale)",
    )
    add(
        "--broken-seeds",
        type=int,
        default=2,
        metavar="N",
        help="seeds 1 … N of each broken variant (default: %(default)s)",
    )
    add(
        "--only",
        nargs="+",
        metavar="VARIANT",
        help="make only these runs: those of the correct model (correct) or of broken variants",
    )
    add_data_option(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what is missing and print a line for each run."""
    arguments = make_parser().parse_args(argv)
    definition = definitions.load(arguments.benchmark, arguments.scale)
    seeds = arguments.seeds
    if seeds is None:
        seeds = evidence.CORRECT_SEEDS_REQUIRED[definition.scale]
    if seeds < 1 or arguments.broken_seeds < 0:
        raise UserError(
            f"--seeds {seeds} --broken-seeds {arguments.broken_seeds}: expected 1 or more, and 0 "
            "or more"
        )
    extras.require_for_runs(definition.extras)

    from cepheid.measure.engine.trainings import CORRECT, record_missing
    from cepheid.measure.studies import targets
    from cepheid.tools.console.terminal import Terminal

    create = import_task(definition, "torch").create
    variants = registry.import_module(definition.name, "broken").VARIANTS
    wanted = targets.list_trainings(
        definition, create, variants, seeds, arguments.broken_seeds, arguments.data
    )
    if arguments.only:
        _refuse_unknown(arguments.only, (CORRECT, *variants))
        wanted = [each for each in wanted if each.variant in arguments.only]
    recorded = record_missing(definition, wanted, arguments.data, Terminal())
    print("\n".join(_summarise(recorded, definition)))
    problems = evidence.find_problems(recorded, definition, tuple(variants))
    for problem in problems:
        print(f"problem: {problem}")
    return EXIT_FINDINGS if problems else EXIT_FINE


def _refuse_unknown(names: Sequence[str], variants: Sequence[str]) -> None:
    for name in names:
        if name not in variants:
            raise UserError(
                f'--only: there is no variant "{name}"{did_you_mean(name, variants)} '
                f"(all: {', '.join(variants)})"
            )


def _summarise(recorded: Evidence, definition: Definition) -> list[str]:
    """Return a line for each run, their hours, and the samples to target of the correct ones."""
    lines = [_describe_curve(curve, definition) for curve in recorded.curves]
    seconds = sum(curve.seconds for curve in recorded.curves)
    lines.append(f"{len(recorded.curves)} runs took {seconds / 3600:.1f} hours")
    usual = evidence.summarize_samples(recorded, definition)
    if usual and definition.kind == "train":
        fewest, median, most = usual
        lines.append(f"samples to target: fewest {fewest:,}, median {median:,}, most {most:,}")
    return [*lines, *_describe_margins(recorded, definition)]


def _describe_margins(recorded: Evidence, definition: Definition) -> list[str]:
    """Return how unlikely a correct seed misses, and how far the nearest broken run stays."""
    from cepheid.measure.studies import margins

    lines = []
    miss = margins.estimate_miss_probability(recorded, definition)
    if miss is not None:
        limit = "the budget" if definition.kind == "train" else "a target"
        seeds = len(margins.find_reaching(recorded, definition))
        lines.append(
            f"one more seed misses {limit} with a probability of {miss:.1%} "
            f"(Student's t, from {seeds} seeds)"
        )
    if near := margins.find_nearest_broken(recorded, definition):
        deviations = (
            f"{near.deviations:,.0f}" if near.deviations >= 10 else f"{near.deviations:.1f}"
        )
        lines.append(
            f"the nearest broken run, {near.variant} with seed {near.seed}, misses {near.metric} "
            f"by {deviations} standard deviations of the correct seeds "
            f"({near.value:.4g}, target {near.target:g})"
        )
    return lines


def _describe_curve(curve: Curve, definition: Definition) -> str:
    """Return the samples to target of a run and the best value of each metric."""
    unit = "samples" if definition.kind == "train" else "images"
    samples = curve.count_samples_to_target(definition)
    best = [
        f"{target.metric} {(min if target.better == 'lower' else max)(values):.4f}"
        for target in definition.quality
        if (values := [quality[target.metric] for _, quality in curve.evaluations])
    ]
    reached = f"reached after {samples:,} {unit}" if samples else "never reached"
    return (
        f"{curve.variant:<22} seed {curve.seed:<3} {reached:<30} best: {', '.join(best)}"
        f"  {curve.seconds:.0f} s"
    )


if __name__ == "__main__":
    run_tool(main)
