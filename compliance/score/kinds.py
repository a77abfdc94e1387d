"""Kinds of benchmark: what the runs of a result are scored by, and in which units.

A benchmark that trains is scored by the time to its targets (rule T20), one that generates by
latencies and images per second (rule T26). Pure: nothing here reads a file.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cepheid.compliance.read.summary import RunSummary
from cepheid.compliance.score.trimmed import Estimate, estimate, mean
from cepheid.rules.definition import Definition, Runs
from cepheid.rules.metrics import METRICS, Metric

MINUTES = "minutes"


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

    ``metrics`` are the scores, of which the last one ranks results; ``read`` takes them from a run
    that converged, and nothing from another. ``unit`` and ``unit_name`` are the unit of the metric
    that ranks, in short and in full, and ``choose_unit`` finds one in which people read a value.
    ``cost`` is what a value costs: the lower, the better the result. ``has_one_order`` is True
    where one order of the runs decides which of them are dropped, False where each metric has its
    own. ``count_samples`` returns the samples to target; None for a run, or a kind, without any.
    """

    metrics: Sequence[Metric]
    read: Callable[[RunSummary], Mapping[str, float]]
    unit: str
    unit_name: str
    better: str
    has_one_order: bool
    cost: Callable[[float], float]
    format: Callable[[float], str]
    choose_unit: Callable[[float], Unit]
    count_samples: Callable[[RunSummary], int | None]

    @property
    def ranked_by(self) -> str:
        """The name of the metric that ranks results."""
        return self.metrics[-1].name

    def measure(self, run: RunSummary) -> float | None:
        """Return the value that ranks a run, or None for one that did not converge."""
        return self.read(run).get(self.ranked_by)

    def estimate(self, runs: Sequence[RunSummary], held: Runs) -> Mapping[str, Estimate]:
        """Estimate each metric from all runs of a result, of which ``held`` says how many to drop.

        The fastest run by one metric may not be that by another. Raises ValueError where more runs
        did not converge than are dropped.
        """
        estimates = {}
        for metric in self.metrics:
            worst, dropped = math.inf, (held.drop_fastest, held.drop_slowest)
            if metric.better == "higher":
                worst, dropped = 0.0, dropped[::-1]
            values = [self.read(run).get(metric.name, worst) for run in runs]
            estimates[metric.name] = estimate(values, *dropped)
        return estimates

    def average(self, runs: Sequence[RunSummary]) -> Mapping[str, float]:
        """Average each metric over the converged runs so far; empty without one."""
        measured = [scores for run in runs if (scores := self.read(run))]
        names = [metric.name for metric in self.metrics] if measured else []
        return {name: mean([scores[name] for scores in measured]) for name in names}


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
    has_one_order=True,
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
    has_one_order=False,
    cost=lambda images_per_second: 1 / max(images_per_second, 1e-300),
    format=format_number,
    choose_unit=lambda images_per_second: Unit("images/s"),
    count_samples=lambda run: None,
)


def find_kind(definition: Definition | None) -> BenchmarkKind:
    """Return the kind of a benchmark; those of MLPerf, which have no definition, train."""
    return GENERATION if definition and definition.kind == "generate" else TRAINING


@dataclass(frozen=True)
class Score:
    """The score of a result: an estimate for each metric of its kind of benchmark, by name."""

    kind: BenchmarkKind
    estimates: Mapping[str, Estimate]

    @property
    def main(self) -> Estimate:
        """The estimate that ranks the result."""
        return self.estimates[self.kind.ranked_by]

    @property
    def cost(self) -> float:
        """What results are ranked by, less is better: minutes, or seconds per image."""
        return self.kind.cost(self.main.mean)
