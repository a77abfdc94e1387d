"""Kinds of benchmark: what the runs of a result are scored by, and in which units.

A benchmark that trains is scored by the time to its targets (rule T20), one that generates by
latencies and images per second (rule T26). Pure: nothing here reads a file.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from cepheid.compliance.read.summary import RunSummary
from cepheid.compliance.score.trimmed import Estimate, estimate, mean
from cepheid.rules.definition import Definition, Runs
from cepheid.rules.generation import METRICS

MINUTES = "minutes"


@dataclass(frozen=True)
class Unit:
    """A unit that suits a value. ``factor`` of them are one unit of the metric that ranks."""

    name: str
    factor: float = 1.0

    def format(self, value: float) -> str:
        """Format a value of the metric in this unit, without its name."""
        return format_number(value * self.factor)


class BenchmarkKind(ABC):
    """What the runs of a kind of benchmark are compared by.

    ``ranked_by`` names the metric that ranks results, ``unit`` and ``unit_name`` are its unit in
    short and in full. ``has_one_order`` is True where one order of the runs decides which of them
    are dropped, False where each metric has its own.
    """

    ranked_by: ClassVar[str]
    unit: ClassVar[str]
    unit_name: ClassVar[str]
    better: ClassVar[str]
    has_one_order: ClassVar[bool]

    @abstractmethod
    def measure(self, run: RunSummary) -> float | None:
        """Return the value that ranks a run, or None for one that did not converge."""

    @abstractmethod
    def count_samples(self, run: RunSummary) -> int | None:
        """Return the samples to target; None for a run, or a kind, that has none."""

    @abstractmethod
    def cost(self, value: float) -> float:
        """Return what a value costs: the lower, the better the result."""

    @abstractmethod
    def estimate(self, runs: Sequence[RunSummary], held: Runs) -> Mapping[str, Estimate]:
        """Estimate each metric from all runs of a result, of which ``held`` says how many to drop.

        Raises ValueError where more runs did not converge than are dropped.
        """

    @abstractmethod
    def average(self, runs: Sequence[RunSummary]) -> Mapping[str, float]:
        """Average each metric over the converged runs so far; empty without one."""

    @abstractmethod
    def format(self, value: float) -> str:
        """Format a value of the metric that ranks results."""

    @abstractmethod
    def choose_unit(self, value: float) -> Unit:
        """Choose the unit in which people read a value of the metric that ranks results."""


class _Training(BenchmarkKind):
    """A benchmark that trains: the time of a run in minutes."""

    ranked_by, unit, unit_name, better = MINUTES, "min", "minutes", "less is better"
    has_one_order = True

    def measure(self, run: RunSummary) -> float | None:
        return run.minutes if math.isfinite(run.minutes) else None

    def count_samples(self, run: RunSummary) -> int | None:
        return run.samples

    def cost(self, value: float) -> float:
        return value

    def estimate(self, runs: Sequence[RunSummary], held: Runs) -> Mapping[str, Estimate]:
        minutes = [run.minutes for run in runs]
        return {MINUTES: estimate(minutes, held.drop_fastest, held.drop_slowest)}

    def average(self, runs: Sequence[RunSummary]) -> Mapping[str, float]:
        minutes = [run.minutes for run in runs if math.isfinite(run.minutes)]
        return {MINUTES: mean(minutes)} if minutes else {}

    def format(self, value: float) -> str:
        return format_minutes(value)

    def choose_unit(self, value: float) -> Unit:
        return Unit("s", 60) if value < 1 else Unit("min")


class _Generation(BenchmarkKind):
    """A benchmark that generates: latencies, and images per second, by which results are ranked."""

    ranked_by, unit, unit_name, better = METRICS[-1].name, "images/s", "images/s", "more is better"
    has_one_order = False

    def measure(self, run: RunSummary) -> float | None:
        return run.generation.get(self.ranked_by)

    def count_samples(self, run: RunSummary) -> int | None:
        return None

    def cost(self, value: float) -> float:
        return 1 / max(value, 1e-300)

    def estimate(self, runs: Sequence[RunSummary], held: Runs) -> Mapping[str, Estimate]:
        """Estimate each metric by itself: the fastest run by one may not be that by another."""
        estimates = {}
        for metric in METRICS:
            worst, dropped = math.inf, (held.drop_fastest, held.drop_slowest)
            if metric.better == "higher":
                worst, dropped = 0.0, dropped[::-1]
            values = [run.generation.get(metric.name, worst) for run in runs]
            estimates[metric.name] = estimate(values, *dropped)
        return estimates

    def average(self, runs: Sequence[RunSummary]) -> Mapping[str, float]:
        measured = [run.generation for run in runs if run.generation]
        names = [metric.name for metric in METRICS] if measured else []
        return {name: mean([scores[name] for scores in measured]) for name in names}

    def format(self, value: float) -> str:
        return format_number(value)

    def choose_unit(self, value: float) -> Unit:
        return Unit("images/s")


TRAINING: BenchmarkKind = _Training()
GENERATION: BenchmarkKind = _Generation()


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


def format_number(value: float) -> str:
    """Format a number with three digits or more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def format_minutes(value: float) -> str:
    """Format minutes with three or four digits."""
    return f"{value:,.1f}" if value >= 100 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"
