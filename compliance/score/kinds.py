"""Kinds of benchmark: what is measured in their runs, and in which units people read it.

A benchmark that trains measures the time to its targets (rule T20), one that generates latencies
and images per second (rule T26). Pure: nothing here reads a file.
"""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cepheid.compliance.read.summary import RunSummary
from cepheid.rules.definition import Definition
from cepheid.rules.metrics import METRICS, Metric

MINUTES = "minutes"  # the time to train
SCORE = "score_minutes"


@dataclass(frozen=True)
class Unit:
    """A unit that suits a value. ``factor`` of them are one unit of the metric that ranks."""

    name: str
    factor: float = 1.0

    def format(self, value: float) -> str:
        """Format a value of the metric in this unit, without its name."""
        return format_number(value * self.factor)


@dataclass(frozen=True, eq=False)
class BenchmarkKind:
    """What the runs of a kind of benchmark are compared by.

    ``metrics`` are what is measured in a run, of which the last one orders results; ``read`` takes
    them from a run that converged, and nothing from another. ``unit`` and ``unit_name`` are the
    unit of that one, in short and in full, and ``choose_unit`` finds one in which people read it.
    ``cost`` is what a value costs: the lower, the better the result. ``count_samples`` returns the
    samples to target; None for a run, or a kind, without any.
    """

    metrics: Sequence[Metric]
    read: Callable[[RunSummary], Mapping[str, float]]
    unit: str
    unit_name: str
    better: str
    cost: Callable[[float], float]
    format: Callable[[float], str]
    choose_unit: Callable[[float], Unit]
    count_samples: Callable[[RunSummary], int | None]

    @property
    def ranked_by(self) -> str:
        """The name of the metric of a run that results are ordered by."""
        return self.metrics[-1].name

    def average(self, runs: Sequence[RunSummary]) -> Mapping[str, float]:
        """Average each metric over the converged runs so far; empty without one."""
        measured = [scores for run in runs if (scores := self.read(run))]
        names = [metric.name for metric in self.metrics] if measured else []
        return {name: statistics.fmean([scores[name] for scores in measured]) for name in names}


def format_number(value: float) -> str:
    """Format a number with three digits or more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def format_minutes(value: float) -> str:
    """Format minutes with three or four digits."""
    return f"{value:,.1f}" if value >= 100 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


TRAINING = BenchmarkKind(
    metrics=(Metric(MINUTES, "lower", MINUTES),),
    read=lambda run: {MINUTES: run.minutes} if math.isfinite(run.minutes) else {},
    unit="min",
    unit_name="minutes",
    better="less is better",
    cost=lambda minutes: minutes,
    format=format_minutes,
    choose_unit=lambda minutes: Unit("s", 60) if minutes < 1 else Unit("min"),
    count_samples=lambda run: run.samples,
)
GENERATION = BenchmarkKind(
    metrics=METRICS,
    read=lambda run: run.generation,
    unit="images/s",
    unit_name="images/s",
    better="more is better",
    cost=lambda images_per_second: 1 / max(images_per_second, 1e-300),
    format=format_number,
    choose_unit=lambda images_per_second: Unit("images/s"),
    count_samples=lambda run: None,
)


def find_kind(definition: Definition | None) -> BenchmarkKind:
    """Return the kind of a benchmark; those of MLPerf, which have no definition, train."""
    return GENERATION if definition and definition.kind == "generate" else TRAINING
