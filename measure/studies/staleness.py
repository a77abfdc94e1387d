"""Quality against staleness: the reference trained with gradients that are some updates old.

``benchmarks/<name>/staleness.json`` holds the quality curves, in the form of ``evidence.json``.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cepheid.benchmarks.registry import import_task
from cepheid.measure.engine import options
from cepheid.measure.engine.drawing import OURS, REPORTED, draw_figure
from cepheid.measure.engine.options import Option
from cepheid.measure.engine.study import Column, Measured, Request, Study
from cepheid.measure.engine.trainings import Training, record_missing
from cepheid.reference.run.config import RunConfig
from cepheid.reference.session.frameworks import find_create
from cepheid.rules.evidence import Curve

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
FILE = "staleness.json"
DELAYS, SEEDS = (0, 1, 4, 16), (1, 2, 3)
MOST_UPDATES = 1000  # each keeps a copy of the weights
DARKEST = 0.85  # of the colour map
MARGIN = 1.15  # of an axis beyond the budget


@dataclass(frozen=True)
class Arm:
    """The runs with one delay, by seed, and the samples of those that reached the targets."""

    delay: int
    curves: tuple[Curve, ...]
    reached: tuple[int, ...]


def list_arms(request: Request) -> dict[tuple[int, int], Training]:
    """Return the runs by delay and seed, all delays of a seed after each other."""
    request.require_training(", so it has no gradients to delay")
    request.require_extras()
    from cepheid.reference.torch.stale import delay_gradients

    create, asked = find_create(import_task(request.definition, "torch")), request.arguments
    arms = {}
    for seed in sorted(set(asked.seeds)):
        config = request.configure(seed)
        for delay in sorted(set(asked.delays)):
            title, variant = f"delay {delay}, seed {seed}", name_variant(delay, config)
            arms[delay, seed] = Training(title, variant, delay_gradients(create, delay), config)
    return arms


def name_variant(delay: int, config: RunConfig) -> str:
    """Return the name of a variant: its delay and the hyperparameters that are not the default.

    Execution settings, which leave the mathematics alone, are not part of it.
    """
    rules = config.definition.hyperparameters
    changed = (
        f"{key}={value}"
        for key, value in config.hyperparameters.items()
        if value != rules[key].default
    )
    return ", ".join([f"delay {delay}", *changed])


def measure(request: Request, wanted: Mapping[tuple[int, int], Training]) -> Measured:
    """Make the runs that are not recorded; return all by delay."""
    definition, trainings = request.definition, list(wanted.values())
    recorded = record_missing(definition, trainings, request.data_root, request.observer, FILE)
    found = {(curve.variant, curve.seed): curve for curve in recorded.curves}
    arms = []
    for delay in dict.fromkeys(delay for delay, _ in wanted):
        curves = tuple(found[wanted[key].variant, key[1]] for key in wanted if key[0] == delay)
        counts = [curve.count_samples_to_target(definition) for curve in curves]
        arms.append(Arm(delay, curves, tuple(sorted(filter(None, counts)))))
    title = f"samples to {' and '.join(map(str, definition.quality))}, by the age of the gradients"
    return Measured(arms, title, is_fine=all(len(arm.reached) == len(arm.curves) for arm in arms))


def _list_reached(counts: Sequence[int]) -> str:
    return " ".join(f"{count:,}" for count in counts)


COLUMNS = (
    Column("delay", "delay"),
    Column("seeds", lambda arm: len(arm.curves)),
    Column("missed", lambda arm: len(arm.curves) - len(arm.reached)),
    Column("samples to target", "reached", _list_reached),
    Column("mean", lambda arm: statistics.mean(arm.reached) if arm.reached else None, "{:,.0f}"),
)


def list_columns(request: Request, measured: Measured) -> Sequence[Column]:
    """Return the columns, with the quality at the last evaluation at which runs can be compared."""
    common = find_common_evaluation(measured.rows)
    metrics = [target.metric for target in request.definition.quality]
    compared = [] if common is None else [_compare_quality(metric, common) for metric in metrics]
    return (*COLUMNS, *compared)


def find_common_evaluation(arms: Sequence[Arm]) -> int | None:
    """Return the samples of the last evaluation at which all runs can be compared.

    It is where the first run that reached the targets ended, else the end of the budget. A run that
    diverged earlier has none there. Returns None if all of them diverged at once.
    """
    if reached := [count for arm in arms for count in arm.reached]:
        return min(reached)
    evaluations = (curve.evaluations for arm in arms for curve in arm.curves)
    return max((points[-1][0] for points in evaluations if points), default=None)


def _compare_quality(metric: str, samples: int) -> Column:
    def list_values(arm: Arm) -> list[float]:
        evaluations = [point for curve in arm.curves for point in curve.evaluations]
        return [quality[metric] for count, quality in evaluations if count == samples]

    return Column(f"{metric} after {samples:,} samples", list_values, _describe_spread)


def _describe_spread(values: Sequence[float]) -> str:
    """Return the mean and the standard deviation of some values, as far as they exist."""
    if len(values) < 2:
        return " ".join(f"{value:.4f}" for value in values)
    return f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}"


def draw(path: Path, request: Request, measured: Measured) -> None:
    """Draw the first metric of every run on the left, and samples to target by delay on the right.

    A cross marks a run that spent its budget without reaching the target, or diverged.
    """
    from matplotlib import colormaps

    definition, arms = request.definition, measured.rows
    target, budget = definition.quality[0], definition.timing.max_samples
    with draw_figure(path, columns=2) as (figure, (left, right)):
        for place, arm in enumerate(arms):
            colour = colormaps["viridis"](DARKEST * place / max(1, len(arms) - 1))
            for number, curve in enumerate(arm.curves):
                points = [(count, quality[target.metric]) for count, quality in curve.evaluations]
                look = {"ms": 3, "lw": 0.9, "color": colour}
                label = None if number else f"{arm.delay}"
                left.plot(*zip(*points, strict=True), ".-", label=label, **look)
            reached = arm.reached
            right.plot([place] * len(reached), reached, ".", color=OURS, alpha=0.5)
            if reached:
                right.plot(place, statistics.mean(reached), "_", color=OURS, ms=24, mew=2)
            if missed := len(arm.curves) - len(reached):
                right.plot(place, budget, "x", color="black")
                above = {"xytext": (0, 8), "textcoords": "offset points", "ha": "center"}
                right.annotate(f"{missed} missed", (place, budget), **above)
        left.axhline(target.target, ls="--", lw=1, color=REPORTED)
        left.set(xlabel="samples", ylabel=target.metric, yscale="log")
        left.legend(title="delay, updates")
        right.set_xticks(range(len(arms)), [str(arm.delay) for arm in arms])
        right.set(xlabel="delay, updates", ylabel="samples to target")
        right.set(xlim=(-0.5, len(arms) - 0.5), ylim=(0, MARGIN * budget))
        figure.suptitle(f"{definition.name}, {definition.scale} scale: asynchronous SGD, simulated")


STUDY = Study(
    "staleness",
    list_arms,
    measure,
    list_columns,
    draw,
    description=DESCRIPTION,
    examples=EXAMPLES,
    options=(
        *options.offer_benchmark("which benchmark; it must train"),
        Option("--delays K", "ages of the gradients, in updates (default: 0 1 4 16)", int, DELAYS,
               {"nargs": "+"}, least=0, most=MOST_UPDATES),
        options.offer_seeds("seeds of each delay (default: 1 2 3)", SEEDS),
        options.FIGURE,
        options.offer_settings("a hyperparameter for all delays, or an execution setting"),
        options.DATA,
    ),
)  # fmt: skip
