"""The figure of a sweep of quality: each metric against the batch size, a point for each seed."""

import math
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cepheid.measure.engine.drawing import OURS, REPORTED, draw_figure
from cepheid.measure.engine.recorded_points import name_machine
from cepheid.measure.studies.sweep.quality import QualitySweep
from cepheid.rules.definition import Definition

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COVERAGE = "coverage_"
COLOURS = (OURS, "C4", "C3")
MOST_PLOTS = 3  # of metrics with a target, beside that of the coverage


def draw_quality(path: Path, definition: Definition, sweep: QualitySweep) -> None:
    """Draw the metrics of a sweep as PNG.

    Raises UserError where the file cannot be written, ModuleNotFoundError without matplotlib.
    """
    coverage = [name for name in sweep.metrics if _find_nominal(name)]
    targets = [target for target in definition.quality if target.metric in sweep.metrics]
    shown = [target for target in targets if not target.metric.startswith(COVERAGE)][:MOST_PLOTS]
    with draw_figure(path, len(shown) + bool(coverage)) as (figure, axes):
        for target, place in zip(shown, axes, strict=False):
            _draw_metric(place, sweep, target.metric, OURS)
            place.axhline(target.target, color=REPORTED, linestyle=":", label="target of the run")
            _finish(place, sweep, target.metric)
        for name, colour in zip(coverage, COLOURS, strict=False):
            _draw_metric(axes[-1], sweep, name, colour)
            axes[-1].axhline(_find_nominal(name), color=colour, linestyle=":", label="as predicted")
        if coverage:
            axes[-1].set_ylim(0, 1.02)
            _finish(axes[-1], sweep, "coverage")
        _entitle(figure, sweep)


def _find_nominal(metric: str) -> float:
    """Return the share that a predicted region of this metric shall hold, 0 for other metrics."""
    percent = metric.removeprefix(COVERAGE)
    is_share = metric.startswith(COVERAGE) and percent.isdecimal()
    return int(percent) / 100 if is_share else 0.0


def _draw_metric(axes: "Axes", sweep: QualitySweep, metric: str, colour: str) -> None:
    """Draw the values of all seeds that did not diverge, and a line through their medians."""
    values = {
        size: [value for value in sweep.list_values(metric, size) if math.isfinite(value)]
        for size in sweep.sizes
    }
    medians = [statistics.median(of_size) if of_size else math.nan for of_size in values.values()]
    axes.plot(list(values), medians, "-", color=colour, label=f"{metric}, median")
    for size, of_size in values.items():
        axes.plot([size] * len(of_size), of_size, "o", color=colour, markersize=4, alpha=0.6)


def _finish(axes: "Axes", sweep: QualitySweep, title: str) -> None:
    axes.set_xlabel("batch size")
    axes.set_title(title)
    axes.set_xticks(sweep.sizes)
    axes.grid()
    axes.legend()


def _entitle(figure: Any, sweep: QualitySweep) -> None:
    facts, seeds = sweep.configuration, len({point.seed for point in sweep.points})
    settings = ", ".join(facts["overrides"])
    machine = name_machine(facts, (point.implementation for point in sweep.points))
    figure.suptitle(
        f"{facts['benchmark']}, {facts['scale']} scale, after {facts['samples']:,} samples at each "
        f"batch size; {seeds} seed{'s' if seeds > 1 else ''}\n{machine}"
        f"{', ' + settings if settings else ', the same learning rate at all batch sizes'}"
    )
