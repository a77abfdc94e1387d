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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cepheid.measure.engine.figures import OURS, draw_figure
from cepheid.measure.engine.recorded_points import name_machine
from cepheid.measure.engine.study import Column
from cepheid.measure.engine.turns import make_task
from cepheid.measure.studies.sweep.measures import Job
from cepheid.reference.machine.use import measure_load
from cepheid.reference.session.frameworks import import_backend
from cepheid.rules.definition import Block, Definition

if TYPE_CHECKING:
    from cepheid.measure.engine.study import OpenDisplay

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

    def __str__(self) -> str:
        values = ", ".join(f"{name} {value:.4g}" for name, value in self.quality.items())
        return f"{values} after {self.samples:,} samples, {self.seconds:.0f} s"


Seeds = Sequence[QualityPoint]
"""The points of one batch size."""


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


def group_by_size(points: Seeds) -> list[Seeds]:
    """Return the points of each batch size, the smallest first."""
    sizes = sorted({point.size for point in points})
    return [[point for point in points if point.size == size] for size in sizes]


def list_columns(points: Seeds) -> Sequence[Column]:
    """Return the columns of a row for each batch size."""
    return (
        Column("batch size", lambda seeds: seeds[0].size),
        Column("seeds", len),
        *(Column(name, partial(describe_spread, name)) for name in points[0].quality),
    )


def describe_spread(metric: str, seeds: Seeds) -> str:
    """Return the median, and the least and the largest value if they differ.

    Trainings that diverged are counted instead.
    """
    finite = _list_finite(metric, seeds)
    if not finite:
        return "diverged"
    text = f"{statistics.median(finite):.4g}"
    if min(finite) != max(finite):
        text += f" ({min(finite):.4g} to {max(finite):.4g})"
    diverged = len(seeds) - len(finite)
    return f"{text}; {diverged} of {len(seeds)} diverged" if diverged else text


def _list_finite(metric: str, seeds: Seeds) -> list[float]:
    """Return the values of the trainings that did not diverge."""
    return [value for point in seeds if (value := point.quality[metric]) is not None]


def draw_quality(
    definition: Definition, facts: Mapping[str, Any], points: Seeds, path: Path
) -> None:
    """Draw each metric against the batch size as PNG, a point for each seed.

    Raises UserError where the file cannot be written, ModuleNotFoundError without matplotlib.
    """
    by_size, metrics = group_by_size(points), points[0].quality
    shares = {name: share for name in metrics if (share := _find_share(name))}
    targets = [
        {target.metric: target.target}
        for target in definition.quality
        if target.metric in metrics and target.metric not in shares
    ]
    plots = [*targets[:MOST_PLOTS], *([shares] if shares else [])]
    with draw_figure(path, len(plots)) as (figure, places):
        for axes, wanted in zip(places, plots, strict=True):
            is_coverage = wanted is shares
            for (name, value), colour in zip(wanted.items(), COLOURS, strict=False):
                _draw_metric(axes, by_size, name, colour)
                label = "as predicted" if is_coverage else "target of the run"
                axes.axhline(value, color=colour, linestyle=":", label=label)
            axes.set(xlabel="batch size", xticks=[seeds[0].size for seeds in by_size])
            axes.set_title("coverage" if is_coverage else next(iter(wanted)))
            if is_coverage:
                axes.set_ylim(0, 1.02)
            axes.grid()
            axes.legend()
        figure.suptitle(_write_title(facts, points))


def _find_share(metric: str) -> float:
    """Return the share that a predicted region of this metric shall hold, 0 for other metrics."""
    percent = metric.removeprefix(COVERAGE)
    is_share = metric.startswith(COVERAGE) and percent.isdecimal()
    return int(percent) / 100 if is_share else 0.0


def _draw_metric(axes: Any, by_size: Sequence[Seeds], metric: str, colour: str) -> None:
    """Draw the values of all seeds that did not diverge, and a line through their medians."""
    values = {seeds[0].size: _list_finite(metric, seeds) for seeds in by_size}
    medians = {size: statistics.median(of_size) for size, of_size in values.items() if of_size}
    axes.plot(list(medians), list(medians.values()), color=colour, label=f"{metric}, median")
    for size, of_size in values.items():
        axes.plot([size] * len(of_size), of_size, "o", color=colour, markersize=4, alpha=0.6)


def _write_title(facts: Mapping[str, Any], points: Seeds) -> str:
    seeds = len({point.seed for point in points})
    settings = ", ".join(facts["overrides"]) or "the same learning rate at all batch sizes"
    machine = name_machine(facts, (point.implementation for point in points))
    return (
        f"{facts['benchmark']}, {facts['scale']} scale, after {facts['samples']:,} samples at each "
        f"batch size; {seeds} seed{'s' if seeds > 1 else ''}\n{machine}, {settings}"
    )
