"""`cepheid rcp`: measure how many samples the reference needs to its targets, by batch size."""

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compliance.score import convergence
from reference.run.frameworks import import_task
from rules import definition, evidence, rcp, recorded
from rules.definition import Definition
from rules.errors import UserError
from rules.evidence import Curve
from rules.rcp import BATCH_SIZE, Point, ReferencePoints, Run
from tools.arguments import add_data_option, add_set_option, command_parser
from tools.cli import EXIT_FINDINGS, EXIT_FINE, run_tool
from tools.measure.measuring import Training, measured

if TYPE_CHECKING:
    from reference.measure.targets import TaskFactory

DESCRIPTION = """\
Train the reference with several seeds at each batch size, and record how many samples it needs to
its targets in benchmarks/<name>/rcp.json. A closed result is compared with these reference
convergence points (rule T21). Each run is recorded as soon as it ends, and what is recorded for
this definition is not measured again; nor are runs with all defaults that `cepheid measure targets`
has made. Without batch sizes the table of what is recorded is printed.
"""

EXAMPLES = """\
examples:
  cepheid rcp galaxy_shape --scale mini
      what is recorded, and what it lacks
  cepheid rcp galaxy_shape --scale mini --batch-size 32
      seeds 1 to 5 at the default batch size
  cepheid rcp galaxy_shape --scale mini --batch-size 64 --set opt_base_learning_rate=2e-3
      another batch size with a learning rate of its own, which is recorded too

exit codes: 0 every run reached the targets; 1 one did not, or was interrupted; 2 wrong use
"""


def parser() -> argparse.ArgumentParser:
    """The command line of `cepheid rcp`."""
    made = command_parser("rcp", DESCRIPTION, EXAMPLES)
    add = made.add_argument
    add("benchmark", help="which benchmark")
    add("--scale", default="mini", help="mini (default) or full")
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
        made, "a hyperparameter for these batch sizes, or precision=fp32|bf16, compile=on|off"
    )
    add_data_option(made)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what is missing, print the table; exit code 1 if a run missed its targets."""
    from reference.run.config import parse_override

    arguments = parser().parse_args(argv)
    chosen = definition.load(arguments.benchmark, arguments.scale)
    if chosen.kind != "train":
        raise UserError(
            f"{chosen.name} generates and trains nothing: it has no reference convergence points "
            "(rule T21 is for training)"
        )
    if arguments.runs < 1:
        raise UserError(f"--runs {arguments.runs}: expected 1 or more")
    if arguments.overrides and not arguments.batch_sizes:
        raise UserError("--set is for a measurement: which batch sizes? give --batch-size B")
    if any(parse_override(override)[0] == BATCH_SIZE for override in arguments.overrides):
        raise UserError(f"--set {BATCH_SIZE}: give the batch sizes with --batch-size")
    if arguments.batch_sizes:
        _measure(chosen, arguments)
    points = rcp.load(chosen.name, chosen.scale)
    if points is None:
        print(f"{chosen.name}, {chosen.scale} scale: nothing is measured yet; --batch-size does it")
        return EXIT_FINE
    print(_table(points, chosen))
    for problem in rcp.problems(points, chosen):
        print(f"problem: {problem}")
    has_missed = any(len(point.samples) < len(point.runs) for point in points.points)
    return EXIT_FINDINGS if has_missed else EXIT_FINE


def _measure(chosen: Definition, arguments: argparse.Namespace) -> None:
    """Make the runs that are not recorded; each one is saved as soon as it ends."""
    known = _recorded(chosen)
    create = import_task(chosen, "torch").create
    missing = []
    for size in dict.fromkeys(arguments.batch_sizes):
        trainings = [
            _training(chosen, size, seed, arguments, create)
            for seed in range(1, arguments.runs + 1)
        ]
        point = known.at(size)
        if point:
            _refuse_other_hyperparameters(point, trainings[0], chosen)
        have = {run.seed for run in point.runs} if point else set()
        for training in trainings:
            if training.config.seed in have:
                continue
            if known_run := _run_of_evidence(chosen, training, arguments):
                _keep(chosen, training, *known_run)
            else:
                missing.append(training)
    for training, curve, measured_on in measured(chosen, missing, arguments.data):
        _keep(chosen, training, curve, measured_on)


def _keep(
    chosen: Definition, training: Training, curve: Curve, measured_on: Mapping[str, Any]
) -> None:
    hyperparameters = dict(training.config.hyperparameters)
    # Read again: another batch size may be being measured at the same time.
    grown = _recorded(chosen).with_run(hyperparameters, measured_on, _run_of(curve, chosen))
    rcp.save(chosen.name, chosen.scale, grown)


def _run_of_evidence(
    chosen: Definition, training: Training, arguments: argparse.Namespace
) -> tuple[Curve, Mapping[str, Any]] | None:
    """The same run, where `cepheid measure targets` has made it: with all defaults."""
    defaults = {name: rule.default for name, rule in chosen.hyperparameters.items()}
    if arguments.overrides or dict(training.config.hyperparameters) != defaults:
        return None
    found = evidence.load(chosen.name, chosen.scale)
    if found is None or found.definition_digest != chosen.digest:
        return None
    seed = training.config.seed
    curve = next((curve for curve in found.correct if curve.seed == seed), None)
    return (curve, found.measured) if curve else None


def _recorded(chosen: Definition) -> ReferencePoints:
    """What is recorded for this very definition; points of an earlier one are given up."""
    points = rcp.load(chosen.name, chosen.scale)
    return points if points and points.belong_to(chosen) else ReferencePoints(chosen.digest)


def _training(
    chosen: Definition, size: int, seed: int, arguments: argparse.Namespace, create: "TaskFactory"
) -> Training:
    from reference.run.config import configure

    config = configure(
        chosen,
        overrides=[*arguments.overrides, f"{BATCH_SIZE}={size}"],
        data_root=arguments.data,
        seed=seed,
    )
    return Training(f"batch size {size}, seed {seed}", "correct", create, config)


def _refuse_other_hyperparameters(point: Point, training: Training, chosen: Definition) -> None:
    """All runs of a batch size use the same ones, and what was measured is not overwritten."""
    asked = training.config.hyperparameters
    differing = [
        f"{name} {point.hyperparameters[name]}, not {value}"
        for name, value in asked.items()
        if point.hyperparameters[name] != value
    ]
    if differing:
        raise UserError(
            f"batch size {point.batch_size} was measured with other hyperparameters "
            f"({'; '.join(differing)}): give the same ones with --set, or take the point out of "
            f"{recorded.path(chosen.name, rcp.FILE)} to measure it anew"
        )


def _run_of(curve: Curve, chosen: Definition) -> Run:
    samples, quality = curve.evaluations[-1] if curve.evaluations else (0, {})
    return Run(
        seed=curve.seed,
        samples_to_target=curve.samples_to_target(chosen),
        epochs=round(samples / chosen.train_samples, 4),
        seconds=round(curve.seconds, 1),
        quality=dict(quality),
    )


def _table(points: ReferencePoints, chosen: Definition) -> str:
    """One line per batch size, with the smallest plausible mean of a result (rule T21)."""
    from tabulate import tabulate

    expected = {entry.batch_size: entry for entry in convergence.expected_at_points(points, chosen)}
    body = []
    for point in points.points:
        judged_by = expected.get(point.batch_size)
        epochs = [run.epochs for run in point.runs if run.samples_to_target is not None]
        body.append(
            [
                point.batch_size,
                f"{len(point.samples)} of {len(point.runs)}",
                _range(point.samples, ",d"),
                f"{judged_by.mean:,.0f}" if judged_by else "",
                f"{judged_by.least:,.0f}" if judged_by else "",
                _range(epochs, ".2f"),
                _set_for(point, chosen),
            ]
        )
    header = (
        "batch size", "reached", "samples to target", "mean", "smallest plausible", "epochs", "set",
    )  # fmt: skip
    title = f"{chosen.name}, {chosen.scale} scale: {' and '.join(map(str, chosen.quality))}"
    return f"{title}\n\n{tabulate(body, header, tablefmt='simple', disable_numparse=True)}\n"


def _range(values: Sequence[float], form: str) -> str:
    """The smallest and the largest value, or the one that there is."""
    ends = sorted({min(values), max(values)}) if values else []
    return " to ".join(format(value, form) for value in ends)


def _set_for(point: Point, chosen: Definition) -> str:
    """The hyperparameters that are not the definition's defaults, the batch size aside."""
    defaults = {name: rule.default for name, rule in chosen.hyperparameters.items()}
    return " ".join(
        f"{name}={value}"
        for name, value in point.hyperparameters.items()
        if name != BATCH_SIZE and defaults.get(name) != value
    )


if __name__ == "__main__":
    run_tool(main)
