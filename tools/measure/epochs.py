"""`cepheid measure epochs`: how many epochs the reference needs, by batch size or by setting."""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cepheid.compliance.score.student import two_sided_quantile
from cepheid.measure.studies import epochs
from cepheid.measure.studies.epochs import Arm, Comparison, Run
from cepheid.rules import definition as definitions
from cepheid.rules import extras
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError
from cepheid.tools.console.arguments import add_benchmark, add_data_option, make_command_parser
from cepheid.tools.console.program import EXIT_FINDINGS, EXIT_FINE, run_tool

DESCRIPTION = """\
Show the epochs to the quality target, as figure 8 and table 1 of Kumar et al. 2019 do:

  by batch size   the reference convergence points that `cepheid rcp` measured, and the published
                  results of MLPerf rounds beside them. Nothing is trained.
  --compare NAME  the settings of a comparison in benchmarks/<name>/epochs.yaml, several seeds
                  each. Runs use what the open division allows and are evaluated after every
                  epoch. Each is recorded in benchmarks/<name>/epochs.json as it ends, and the
                  same command makes the missing ones.

Published results are those of tuned submissions at full scale. No rule compares with them.
"""
EXAMPLES = """\
examples:
  cepheid measure epochs resnet50 --figure epochs.png
  cepheid measure epochs resnet50 --compare momentum --seeds 1 2 3 4 5 --figure momentum.png

exit codes: 0 fine; 1 a run missed the targets; 2 wrong use
"""


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of `cepheid measure epochs`."""
    parser = make_command_parser("measure epochs", DESCRIPTION, EXAMPLES)
    add_benchmark(parser, "which benchmark; it must train")
    add = parser.add_argument
    add("--compare", metavar="NAME", help="a comparison of epochs.yaml (default: by batch size)")
    add(
        "--seeds",
        type=int,
        nargs="+",
        metavar="N",
        help="seeds of each setting (default: those recorded, or 1 to 5)",
    )
    add("--figure", type=Path, metavar="FILE.png", help="draw a figure too")
    add_data_option(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what is missing, print a table, draw a figure."""
    arguments = make_parser().parse_args(argv)
    definition = definitions.load(arguments.benchmark, arguments.scale)
    if definition.kind != "train":
        raise UserError(f"{definition.name} generates and does not train, so it has no epochs")
    if arguments.compare is None:
        if arguments.seeds:
            raise UserError("--seeds needs --compare; `cepheid rcp` measures batch sizes")
        return _show_batch_sizes(definition, arguments.figure)
    return _compare_settings(definition, arguments)


def _show_batch_sizes(definition: Definition, figure: Path | None) -> int:
    from tabulate import tabulate

    ours, published = epochs.list_by_batch_size(definition), epochs.load_published(definition.name)
    rows = [
        (size, _join(values), f"reference, {definition.scale} scale, {len(values)} seeds")
        for size, values in sorted(ours.items())
    ]
    rows += [
        (
            result.batch_size,
            f"{result.mean_epochs:.1f}",
            f"published: {result.round}, {result.submitter} {result.system}",
        )
        for result in published
    ]
    print(tabulate(rows, ("batch size", "epochs to target", "source"), disable_numparse=True))
    if not ours:
        print(
            f"\nnothing is measured for the reference at {definition.scale} scale; `cepheid rcp "
            f"{definition.name} --scale {definition.scale} --batch-size B` measures it"
        )
    if figure:
        from cepheid.measure.studies import epochs_figure as figures

        figures.draw_by_batch_size(figure, definition, ours, published)
    return EXIT_FINE


def _compare_settings(definition: Definition, arguments: argparse.Namespace) -> int:
    from tabulate import tabulate

    from cepheid.tools.console.terminal import Terminal

    comparison = epochs.load_comparison(definition.name, definition.scale, arguments.compare)
    extras.require_for_runs(definition.extras)
    runs = epochs.measure_missing(
        definition, comparison, arguments.seeds or (), arguments.data, Terminal()
    )
    print(f"{comparison.title}: epochs to {' and '.join(map(str, definition.quality))}\n")
    print(tabulate(_make_rows(comparison, runs), headers="keys", disable_numparse=True))
    print(f"\npublished: {comparison.source}; {comparison.published_at}")
    if arguments.figure:
        from cepheid.measure.studies import epochs_figure as figures

        figures.draw_by_setting(arguments.figure, definition, comparison, runs)
    return EXIT_FINDINGS if any(run.epochs is None for run in runs) else EXIT_FINE


def _make_rows(comparison: Comparison, runs: Sequence[Run]) -> list[Mapping[str, Any]]:
    baseline = comparison.arms[0].own_name
    rows: list[Mapping[str, Any]] = []
    for arm in comparison.arms:
        first = next(each for each in comparison.arms if each.group == arm.group)
        ours = [run.epochs for run in runs if run.arm == arm.name]
        reached = [value for value in ours if value is not None]
        rows.append(
            {
                "setting": arm.name,
                "seeds": len(ours),
                "missed": len(ours) - len(reached),
                "epochs of each": _join(reached),
                "mean": f"{statistics.mean(reached):.1f}" if reached else "",
                f"of {baseline}": _compare_by_seed(first, arm, runs),
                "published": arm.published_epochs or "",
            }
        )
    return rows


def _compare_by_seed(first: Arm, arm: Arm, runs: Sequence[Run]) -> str:
    """Return the epochs of an arm over those of the first, by seed: mean and 95% interval."""
    of_first, ours = (
        {run.seed: run.epochs for run in runs if run.arm == each.name and run.epochs}
        for each in (first, arm)
    )
    shares = [ours[seed] / of_first[seed] for seed in sorted(ours.keys() & of_first.keys())]
    if arm == first or len(shares) < 2:
        return ""
    half_width = two_sided_quantile(len(shares) - 1) * statistics.stdev(shares) / len(shares) ** 0.5
    mean = statistics.mean(shares)
    return f"{mean:.2f} ({mean - half_width:.2f} to {mean + half_width:.2f})"


def _join(values: Sequence[float]) -> str:
    return " ".join(f"{value:.3g}" for value in sorted(values))


if __name__ == "__main__":
    run_tool(main)
