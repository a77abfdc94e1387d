"""Run the reference again and again to learn how it converges, and keep the quality curves."""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cepheid.measure.engine.study import OURS, REPORTED, Column, Measured, Request, draw_figure
from cepheid.reference.run.config import RunConfig
from cepheid.reference.session.observer import Observer, prepare_data
from cepheid.rules import evidence
from cepheid.rules.definition import Definition
from cepheid.rules.evidence import Curve, Evidence, locate_file
from cepheid.rules.host import require_checkout

if TYPE_CHECKING:
    from cepheid.reference.run.progress import OnProgress, Progress
    from cepheid.reference.torch.ranks.distributed import TorchRanks

TaskFactory = Callable[[RunConfig, "TorchRanks"], Any]
DARKEST = 0.85  # of the colour map
MARGIN = 1.15  # of an axis beyond the budget
CORRECT = "correct"
"""The variant of a run of the unbroken reference."""
HARDWARE = (
    "processor", "processor_cores_per_node", "accelerator", "accelerators_per_node",
    "operating_system",
)  # fmt: skip
"""The keys of a system description that say what a measurement ran on."""


@dataclass(frozen=True)
class Training:
    """One run to make: its title for the user, its variant, its task and its configuration."""

    title: str
    variant: str
    create: TaskFactory
    config: RunConfig


def train_all(
    definition: Definition, trainings: Sequence[Training], data_root: Path, observer: Observer
) -> Iterator[tuple[Training, Curve, Mapping[str, Any]]]:
    """Make runs one after the other, on data that are prepared first.

    Yields each run with its quality curve and the facts about what it ran on. Starts nothing if
    there are no runs to make. Raises UserError for what a task refuses, such as an uneven
    ``micro_batch``, before data are prepared, and in an installation, since the curves are recorded
    beside the definition.
    """
    if not trainings:
        return
    require_checkout(f"a record of {definition.name}")
    from cepheid.reference.machine import system
    from cepheid.reference.torch.ranks.distributed import start_ranks

    with start_ranks() as ranks:
        for training in trainings:
            training.create(training.config, ranks)
        prepare_data(definition, data_root, observer)
        description = system.describe("local", ranks)
        hardware = {key: description[key] for key in HARDWARE}
        for number, training in enumerate(trainings, 1):
            observer.tell(f"{training.title} (run {number} of {len(trainings)})")
            with observer.show_run(definition) as on_progress:
                curve, implementation = train(training, ranks, on_progress)
            yield training, curve, {**implementation, **hardware}


def train(
    training: Training, ranks: "TorchRanks", on_progress: "OnProgress"
) -> tuple[Curve, Mapping[str, Any]]:
    """Make one run, to the targets or through the whole budget.

    Returns its quality curve and the facts about its implementation.
    """
    from cepheid.reference.run.log import RunLogWriter
    from cepheid.reference.run.task import run_task
    from cepheid.reference.torch.backend import free_earlier_tasks

    evaluations: list[tuple[int, Mapping[str, float]]] = []
    start = 0.0

    def record(progress: "Progress") -> None:
        nonlocal start
        if progress.stage.is_repeated and not start:
            start = time.monotonic()
        if progress.quality is not None:
            evaluations.append((progress.samples, progress.quality))
        on_progress(progress)

    free_earlier_tasks()
    task = training.create(training.config, ranks)
    run_task(task, training.config, RunLogWriter(None), record)
    seconds = time.monotonic() - start
    curve = Curve(training.variant, training.config.seed, seconds, tuple(evaluations))
    return curve, task.implementation()


def record_missing(
    definition: Definition,
    wanted: Sequence[Training],
    data_root: Path,
    observer: Observer,
    file: str = evidence.FILE,
) -> Evidence:
    """Make the runs that ``file`` does not have for this definition, and return all of them.

    Each run is recorded as soon as it ends, beside those that another process has recorded
    meanwhile.
    """
    recorded = _load(definition, file)
    have = {(curve.variant, curve.seed) for curve in recorded.curves}
    missing = [each for each in wanted if (each.variant, each.config.seed) not in have]
    for _, curve, measured in train_all(definition, missing, data_root, observer):
        recorded = _record(definition, curve, measured, file)
    return recorded


def _record(
    definition: Definition, curve: Curve, measured: Mapping[str, Any], file: str
) -> Evidence:
    """Add a run to the file, in place of one of the same variant and seed; return all."""
    from filelock import FileLock  # here: who reads what is recorded needs no extra

    path = locate_file(definition.name, file)
    with FileLock(path.with_name(f".{path.name}.lock")):
        others = [
            each
            for each in _load(definition, file).curves
            if (each.variant, each.seed) != (curve.variant, curve.seed)
        ]
        recorded = Evidence(definition.digest, measured, (*others, curve))
        evidence.save(definition.name, definition.scale, recorded, file)
    return recorded


def _load(definition: Definition, file: str) -> Evidence:
    """Return the runs that are recorded for this very definition."""
    return evidence.load(definition, file) or Evidence(definition.digest, {}, ())


# Settings that are compared by several seeds each ------------------------------------------------


@dataclass(frozen=True)
class Arm:
    """The runs of a setting, by seed, and the samples of those that reached the targets."""

    setting: Any
    curves: tuple[Curve, ...]
    reached: tuple[int, ...]

    @property
    def missed(self) -> int:
        """The number of runs that did not reach the targets."""
        return len(self.curves) - len(self.reached)

    @property
    def mean(self) -> float | None:
        """The mean samples of the runs that reached the targets, None without any."""
        return statistics.mean(self.reached) if self.reached else None


@dataclass(frozen=True)
class Arms:
    """What a study compares: settings of one kind, several seeds each, recorded in ``file``.

    ``what`` and ``unit`` name the settings in table and figure, ``order`` and ``title`` end the
    titles of the two.
    """

    file: str
    what: str
    unit: str
    order: str
    title: str

    def measure(self, request: Request, wanted: Mapping[tuple[Any, int], Training]) -> Measured:
        """Make the runs, by setting and seed, that are not recorded; return a row a setting."""
        definition, trainings = request.definition, list(wanted.values())
        root, observer = request.data_root, request.observer
        recorded = record_missing(definition, trainings, root, observer, self.file)
        made = {(curve.variant, curve.seed): curve for curve in recorded.curves}
        arms = []
        for setting in dict.fromkeys(setting for setting, _ in wanted):
            curves = [made[wanted[key].variant, key[1]] for key in wanted if key[0] == setting]
            counts = [curve.count_samples_to_target(definition) for curve in curves]
            arms.append(Arm(setting, tuple(curves), tuple(sorted(filter(None, counts)))))
        title = f"samples to {' and '.join(map(str, definition.quality))}, {self.order}"
        return Measured(arms, title, is_fine=not any(arm.missed for arm in arms), found=self)


def list_arm_columns(request: Request, measured: Measured) -> Sequence[Column]:
    """Return the columns, with the quality at the last evaluation at which runs can be compared.

    That is where the first run that reached the targets ended, else the end of the budget. A run
    that diverged earlier has none there; there is no such column if all of them diverged at once.
    """
    arms: Sequence[Arm] = measured.rows
    ends = [curve.evaluations[-1][0] for arm in arms for curve in arm.curves if curve.evaluations]
    common = min((count for arm in arms for count in arm.reached), default=max(ends, default=0))
    metrics = [target.metric for target in request.definition.quality] if ends else []
    return (
        Column(measured.found.what, "setting"),
        Column("seeds", lambda arm: len(arm.curves)),
        Column("missed", "missed"),
        Column("samples to target", lambda arm: " ".join(f"{count:,}" for count in arm.reached)),
        Column("mean", "mean", "{:,.0f}"),
        *(_compare_quality(metric, common) for metric in metrics),
    )


def _compare_quality(metric: str, samples: int) -> Column:
    """Return the column with mean and standard deviation of a metric, as far as they exist."""

    def describe(arm: Arm) -> str:
        evaluations = [point for curve in arm.curves for point in curve.evaluations]
        values = [quality[metric] for count, quality in evaluations if count == samples]
        if len(values) < 2:
            return " ".join(f"{value:.4f}" for value in values)
        return f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}"

    return Column(f"{metric} after {samples:,} samples", describe)


def draw_arms(path: Path, request: Request, measured: Measured) -> None:
    """Draw the first metric of every run on the left, and samples to target by setting beside it.

    A cross marks a run that spent its budget without reaching the target, or diverged.
    """
    from matplotlib import colormaps

    definition, arms, of = request.definition, measured.rows, measured.found
    target, budget = definition.quality[0], definition.timing.max_samples
    with draw_figure(path, columns=2) as (figure, (left, right)):
        for place, arm in enumerate(arms):
            colour = colormaps["viridis"](DARKEST * place / max(1, len(arms) - 1))
            for number, curve in enumerate(arm.curves):
                points = [(count, quality[target.metric]) for count, quality in curve.evaluations]
                look = {"ms": 3, "lw": 0.9, "color": colour}
                label = None if number else f"{arm.setting}"
                left.plot(*zip(*points, strict=True), ".-", label=label, **look)
            right.plot([place] * len(arm.reached), arm.reached, ".", color=OURS, alpha=0.5)
            if arm.reached:
                right.plot(place, arm.mean, "_", color=OURS, ms=24, mew=2)
            if arm.missed:
                right.plot(place, budget, "x", color="black")
                above = {"xytext": (0, 8), "textcoords": "offset points", "ha": "center"}
                right.annotate(f"{arm.missed} missed", (place, budget), **above)
        left.axhline(target.target, ls="--", lw=1, color=REPORTED)
        left.set(xlabel="samples", ylabel=target.metric, yscale="log")
        left.legend(title=f"{of.what}, {of.unit}")
        right.set_xticks(range(len(arms)), [str(arm.setting) for arm in arms])
        right.set(xlabel=f"{of.what}, {of.unit}", ylabel="samples to target")
        right.set(xlim=(-0.5, len(arms) - 0.5), ylim=(0, MARGIN * budget))
        figure.suptitle(f"{definition.name}, {definition.scale} scale: {of.title}")
