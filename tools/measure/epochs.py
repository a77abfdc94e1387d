"""`cepheid measure epochs`: how many epochs the reference needs, by batch size or by setting."""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from compliance.score.comparison import student
from reference.measure import epochs
from reference.measure.epochs import Arm, Comparison, Run
from reference.run.frameworks import import_task
from rules import definition
from rules.definition import Definition
from rules.errors import UserError
from rules.evidence import Curve
from tools.arguments import add_data_option, command_parser
from tools.cli import EXIT_FINDINGS, EXIT_FINE, run_tool
from tools.measure.measuring import Training, measured

DESCRIPTION = """\
Epochs to the quality target, the way figure 8 and table 1 of Kumar et al. 2019 show them:

  by batch size   the reference convergence points that `cepheid rcp` measured, and the published
                  results of MLPerf rounds beside them. Nothing is trained
  --compare NAME  settings against each other, several seeds each (benchmarks/<name>/epochs.yaml
                  says which). Runs are made with what the open division allows, but evaluated
                  after every epoch; each is recorded in benchmarks/<name>/epochs.json as it ends,
                  and the same command makes the missing ones

Published results are those of tuned submissions at full scale. They are shown, and no rule compares
with them.
"""
EXAMPLES = """\
examples:
  cepheid measure epochs resnet50 --figure epochs.png
  cepheid measure epochs resnet50 --compare momentum --seeds 1 2 3 4 5 --figure momentum.png

exit codes: 0 fine; 1 a run missed the targets; 2 wrong use
"""


def parser() -> argparse.ArgumentParser:
    """The command line of `cepheid measure epochs`."""
    made = command_parser("measure epochs", DESCRIPTION, EXAMPLES)
    add = made.add_argument
    add("benchmark", help="which benchmark; one that trains")
    add("--scale", default="mini", help="mini (default) or full")
    add("--compare", metavar="NAME", help="a comparison of epochs.yaml (default: by batch size)")
    add(
        "--seeds",
        type=int,
        nargs="+",
        metavar="N",
        help="of each setting compared (default: those on record, and where none is: 1 to 5)",
    )
    add("--figure", type=Path, metavar="FILE.png", help="draw it too")
    add_data_option(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what is missing, print a table, draw a figure."""
    arguments = parser().parse_args(argv)
    chosen = definition.load(arguments.benchmark, arguments.scale)
    if chosen.kind != "train":
        raise UserError(f"{chosen.name} generates and trains nothing: it has no epochs")
    if arguments.compare is None:
        if arguments.seeds:
            raise UserError("--seeds is for --compare; `cepheid rcp` measures batch sizes")
        return _by_batch_size(chosen, arguments.figure)
    return _by_setting(chosen, arguments)


def _by_batch_size(chosen: Definition, figure: Path | None) -> int:
    from tabulate import tabulate

    ours, theirs = epochs.by_batch_size(chosen), epochs.published(chosen.name)
    rows = [
        (size, _listed(values), f"reference, {chosen.scale} scale, {len(values)} seeds")
        for size, values in sorted(ours.items())
    ]
    rows += [
        (
            result.batch_size,
            f"{result.mean_epochs:.1f}",
            f"as published: {result.round}, {result.submitter} {result.system}",
        )
        for result in theirs
    ]
    print(tabulate(rows, ("batch size", "epochs to target", "of"), disable_numparse=True))
    if not ours:
        print(
            f"\nof the reference nothing is measured at {chosen.scale} scale: "
            f"`cepheid rcp {chosen.name} --scale {chosen.scale} --batch-size B` does it"
        )
    if figure:
        from tools.measure import epochs_figure

        epochs_figure.by_batch_size(figure, chosen, ours, theirs)
    return EXIT_FINE


def _by_setting(chosen: Definition, arguments: argparse.Namespace) -> int:
    from tabulate import tabulate

    name = arguments.compare
    asked = epochs.comparison(chosen.name, name)
    have = {(run.arm, run.seed) for run in epochs.runs(chosen, name, asked)}
    seeds = arguments.seeds or sorted({seed for _, seed in have}) or list(range(1, 6))
    missing = [(arm, seed) for seed in seeds for arm in asked.arms if (arm.name, seed) not in have]
    trainings = [_training(chosen, arm, seed, arguments.data) for arm, seed in missing]
    for _, curve, _ in measured(chosen, trainings, arguments.data):
        epochs.keep(chosen, name, asked, _run_of(curve, chosen))
    made = epochs.runs(chosen, name, asked)
    print(f"{asked.title}: epochs to {' and '.join(map(str, chosen.quality))}\n")
    print(tabulate(_rows(asked, made), headers="keys", disable_numparse=True))
    print(f"\npublished: {asked.source}; {asked.published_at}")
    if arguments.figure:
        from tools.measure import epochs_figure

        epochs_figure.by_setting(arguments.figure, chosen, asked, made)
    return EXIT_FINDINGS if any(run.epochs is None for run in made) else EXIT_FINE


def _training(chosen: Definition, arm: Arm, seed: int, data_root: Path) -> Training:
    from reference.run.config import configure

    timing = replace(chosen.timing, eval_every_samples=chosen.train_samples)
    config = configure(
        replace(chosen, timing=timing),
        division="open",
        overrides=arm.overrides,
        data_root=data_root,
        seed=seed,
    )
    create = import_task(chosen, "torch").create
    return Training(f"{arm.name}, seed {seed}", arm.name, create, config)


def _run_of(curve: Curve, chosen: Definition) -> Run:
    samples = curve.samples_to_target(chosen)
    best = {
        target.metric: (min if target.better == "lower" else max)(
            quality[target.metric] for _, quality in curve.evaluations
        )
        for target in chosen.quality
    }
    return Run(curve.variant, curve.seed, samples / chosen.train_samples if samples else None, best)


def _rows(asked: Comparison, made: Sequence[Run]) -> list[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = []
    for arm in asked.arms:
        ours = [run.epochs for run in made if run.arm == arm.name]
        reached = [value for value in ours if value is not None]
        rows.append(
            {
                "setting": arm.name,
                "seeds": len(ours),
                "missed": len(ours) - len(reached),
                "epochs of each": _listed(reached),
                "mean": f"{statistics.mean(reached):.1f}" if reached else "",
                f"of {asked.arms[0].name}": _share_of(asked.arms[0], arm, made),
                "published": arm.published_epochs or "",
            }
        )
    return rows


def _share_of(first: Arm, arm: Arm, made: Sequence[Run]) -> str:
    """Epochs of an arm over those of the first one, seed by seed: mean and its 95% interval."""
    of_first, ours = (
        {run.seed: run.epochs for run in made if run.arm == each.name and run.epochs}
        for each in (first, arm)
    )
    shares = [ours[seed] / of_first[seed] for seed in sorted(ours.keys() & of_first.keys())]
    if arm == first or len(shares) < 2:
        return ""
    half_width = student(len(shares) - 1) * statistics.stdev(shares) / len(shares) ** 0.5
    mean = statistics.mean(shares)
    return f"{mean:.2f} ({mean - half_width:.2f} to {mean + half_width:.2f})"


def _listed(values: Sequence[float]) -> str:
    return " ".join(f"{value:.3g}" for value in sorted(values))


if __name__ == "__main__":
    run_tool(main)
