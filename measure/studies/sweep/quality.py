"""The quality that a network reaches at each batch size: `cepheid measure sweep --quality`.

Arcelin 2021 (section 4) reports that below a batch size of 4 a network does not learn well. Here a
training runs through a fixed number of samples, whatever targets it reaches, and is evaluated once,
at its end. Each batch size and seed is a process of its own on one thread, so that as many as there
are cores may run beside each other. All batch sizes have the same learning rate, which decays over
that number of samples, unless ``--set`` says otherwise.
"""

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cepheid.measure.engine.recorded_points import PointFolder, describe_point, name_machine
from cepheid.measure.engine.study import OURS, Column, draw_figure
from cepheid.measure.engine.turns import make_task
from cepheid.measure.studies.sweep.measures import Job
from cepheid.reference.machine.use import measure_load
from cepheid.reference.session.frameworks import import_backend
from cepheid.rules.definition import Block, Definition

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from cepheid.measure.engine.study import OpenDisplay

FILE, TABLE, FIGURE = "quality.json", "quality.csv", "quality.png"
COVERAGE = "coverage_"
COLOURS = (OURS, "C4", "C3")
MOST_PLOTS = 3  # of metrics with a target, beside that of the coverage


@dataclass(frozen=True)
class QualityPoint:
    """The quality of one training: ``size`` is its batch size, ``samples`` what it trained on.

    In a record what is not finite, of a training that diverged, is None.
    """

    size: int
    seed: int
    samples: int
    quality: Mapping[str, float | None]
    train_loss: float | None
    seconds: float
    load_before: float
    implementation: Mapping[str, Any]

    @property
    def place(self) -> str:
        """The name of its file below the folder."""
        return f"seed-{self.seed}/{self.size}"


@dataclass(frozen=True)
class QualitySweep:
    """All points by batch size and seed, and how they were measured."""

    configuration: Mapping[str, Any]
    points: tuple[QualityPoint, ...]

    @property
    def sizes(self) -> list[int]:
        """The batch sizes, rising."""
        return sorted({point.size for point in self.points})

    @property
    def metrics(self) -> list[str]:
        """The metrics of all points, in the order of the evaluation."""
        return list(self.points[0].quality)

    def list_values(self, metric: str, size: int) -> list[float | None]:
        """Return a metric at a batch size, by seed; None of a training that diverged."""
        return [point.quality[metric] for point in self.points if point.size == size]

    def list_finite(self, metric: str, size: int) -> list[float]:
        """Return a metric at a batch size, of the trainings that did not diverge."""
        return [value for value in self.list_values(metric, size) if value is not None]

    def describe_spread(self, metric: str, size: int) -> str:
        """Return the median, and the least and the largest value if they differ.

        Trainings that diverged are counted instead.
        """
        count, finite = len(self.list_values(metric, size)), self.list_finite(metric, size)
        if not finite:
            return "diverged"
        text = f"{statistics.median(finite):.4g}"
        if min(finite) != max(finite):
            text += f" ({min(finite):.4g} to {max(finite):.4g})"
        diverged = count - len(finite)
        return f"{text}; {diverged} of {count} diverged" if diverged else text

    def write(self, folder: PointFolder[QualityPoint]) -> None:
        """Write ``quality.json`` and ``quality.csv``."""
        points = list(map(describe_point, self.points))
        folder.write_json(FILE, {"configuration": dict(self.configuration), "points": points})
        columns = [
            Column(None, "size", key="batch_size"),
            Column(None, "seed", key="seed"),
            Column(None, "samples", key="samples"),
            *(Column(None, _read(metric), key=metric) for metric in self.metrics),
            Column(None, "train_loss", key="train_loss"),
            Column(None, "seconds", key="seconds"),
        ]
        folder.write_csv(TABLE, columns, self.points)


def _read(metric: str) -> Callable[[QualityPoint], float | None]:
    return lambda point: point.quality[metric]


def train_once(job: Job, open_display: "OpenDisplay") -> QualityPoint:
    """Train and evaluate in this process, which was started for it."""
    os.environ["OMP_NUM_THREADS"] = "1"  # before the framework is loaded
    config, load, observer = job.configure(), measure_load(), open_display(None)
    with import_backend(job.framework).start_ranks() as ranks:
        task = make_task(config, ranks)
        end = -(-job.samples // job.size) * job.size
        start = time.monotonic()
        with observer.count(str(job), "samples") as on_count:
            loss = task.train(Block(1, 0, end), lambda samples: on_count(samples, end))
        quality = task.evaluate()
        return QualityPoint(
            size=job.size,
            seed=job.seed,
            samples=end,
            quality=dict(quality),
            train_loss=float(loss),
            seconds=time.monotonic() - start,
            load_before=load,
            implementation=dict(task.implementation()),
        )


def draw_quality(path: Path, definition: Definition, sweep: QualitySweep) -> None:
    """Draw each metric against the batch size as PNG, a point for each seed.

    Raises UserError where the file cannot be written, ModuleNotFoundError without matplotlib.
    """
    nominal = {name: share for name in sweep.metrics if (share := _find_nominal(name))}
    shown = [
        target
        for target in definition.quality
        if target.metric in sweep.metrics and target.metric not in nominal
    ]
    plots = [(t.metric, {t.metric: t.target}, "target of the run") for t in shown[:MOST_PLOTS]]
    if nominal:
        plots.append(("coverage", nominal, "as predicted"))
    with draw_figure(path, len(plots)) as (figure, places):
        for axes, (title, wanted, label) in zip(places, plots, strict=True):
            for (name, value), colour in zip(wanted.items(), COLOURS, strict=False):
                _draw_metric(axes, sweep, name, colour)
                axes.axhline(value, color=colour, linestyle=":", label=label)
            axes.set(xlabel="batch size", title=title, xticks=sweep.sizes)
            axes.grid()
            axes.legend()
        if nominal:
            places[-1].set_ylim(0, 1.02)
        figure.suptitle(_write_title(sweep))


def _find_nominal(metric: str) -> float:
    """Return the share that a predicted region of this metric shall hold, 0 for other metrics."""
    percent = metric.removeprefix(COVERAGE)
    is_share = metric.startswith(COVERAGE) and percent.isdecimal()
    return int(percent) / 100 if is_share else 0.0


def _draw_metric(axes: "Axes", sweep: QualitySweep, metric: str, colour: str) -> None:
    """Draw the values of all seeds that did not diverge, and a line through their medians."""
    values = {size: sweep.list_finite(metric, size) for size in sweep.sizes}
    medians = {size: statistics.median(of_size) for size, of_size in values.items() if of_size}
    axes.plot(list(medians), list(medians.values()), color=colour, label=f"{metric}, median")
    for size, of_size in values.items():
        axes.plot([size] * len(of_size), of_size, "o", color=colour, markersize=4, alpha=0.6)


def _write_title(sweep: QualitySweep) -> str:
    facts, seeds = sweep.configuration, len({point.seed for point in sweep.points})
    settings = ", ".join(facts["overrides"]) or "the same learning rate at all batch sizes"
    machine = name_machine(facts, (point.implementation for point in sweep.points))
    return (
        f"{facts['benchmark']}, {facts['scale']} scale, after {facts['samples']:,} samples at each "
        f"batch size; {seeds} seed{'s' if seeds > 1 else ''}\n{machine}, {settings}"
    )


def summarise(sweep: QualitySweep) -> Sequence[Mapping[str, Any]]:
    """Return the rows of the table: each metric by batch size."""
    return [
        {"batch size": size, "seeds": len(sweep.list_values(sweep.metrics[0], size))}
        | {metric: sweep.describe_spread(metric, size) for metric in sweep.metrics}
        for size in sweep.sizes
    ]
