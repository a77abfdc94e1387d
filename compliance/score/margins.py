"""How far correct runs, broken variants and shallow baselines are from the targets of a benchmark.

The unit is the standard deviation of a metric over the correct seeds where their runs end. A margin
is that of the worst of the targets: above 0 all of them hold, below 0 one is missed by that much.
"""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cepheid.rules import evidence
from cepheid.rules.definition import Definition
from cepheid.rules.evidence import BASELINES_FILE, Curve, Evidence


@dataclass(frozen=True)
class Margin:
    """The margin of a run, of the target ``metric`` that decides it."""

    variant: str
    seed: int
    metric: str
    value: float
    deviations: float

    def __str__(self) -> str:
        name = f"{self.variant}, " if self.variant != "correct" else ""
        return f"{self.deviations:+.3g} ({name}seed {self.seed}, {self.metric} {self.value:.4g})"


@dataclass(frozen=True)
class Margins:
    """The margins of the worst correct seed, the best broken variant and the best baseline.

    None where there is no such run, or too few correct ones for a deviation.
    """

    correct: Margin | None
    broken: Margin | None
    shallow: Margin | None


def find_margins(definition: Definition) -> Margins:
    """Return the margins that are recorded for this very definition."""
    found = evidence.load(definition)
    if found is None:
        return Margins(None, None, None)
    spreads = measure_spreads(found, definition)
    baselines = evidence.load(definition, BASELINES_FILE)
    ends = [
        Curve(curve.variant, curve.seed, curve.seconds, (reached,))
        for curve in found.correct
        if (reached := curve.find_reaching(definition))
    ]
    shallow = baselines.curves if baselines else ()
    return Margins(
        min(_list(ends, definition, spreads), key=_order, default=None),
        max(_list(found.broken, definition, spreads), key=_order, default=None),
        max(_list(shallow, definition, spreads), key=_order, default=None),
    )


def describe(definition: Definition) -> str:
    """Say how far the nearest runs are from the targets, "" where nothing is recorded."""
    found = find_margins(definition)
    named = (
        ("worst correct seed", found.correct),
        ("best broken variant", found.broken),
        ("best shallow baseline", found.shallow),
    )
    said = [f"{name} {margin}" for name, margin in named if margin is not None]
    if not said:
        return ""
    reaches = found.shallow is not None and found.shallow.deviations >= 0
    warning = "; the baseline reaches the targets without learning the task" if reaches else ""
    return f"in standard deviations of the correct seeds: {'; '.join(said)}{warning}"


def measure_spreads(recorded: Evidence, definition: Definition) -> Mapping[str, float]:
    """Return the standard deviation of each metric over the correct seeds, if it is known."""
    reached = [point[1] for curve in recorded.correct if (point := curve.find_reaching(definition))]
    if len(reached) < 2:
        return {}
    names = [target.metric for target in definition.quality]
    spreads = {name: statistics.stdev(quality[name] for quality in reached) for name in names}
    return {name: spread for name, spread in spreads.items() if spread > 0}


def _list(
    curves: Iterable[Curve], definition: Definition, spreads: Mapping[str, float]
) -> list[Margin]:
    """Return the margin of each run at its best evaluation, where a deviation is known."""
    targets, found = [each for each in definition.quality if each.metric in spreads], []
    for curve in curves:
        known = []
        for _, quality in curve.evaluations:
            margins = []
            for target in targets:
                name, value, aim = target.metric, quality.get(target.metric), target.target
                if value is not None:
                    away = value - aim if target.better == "higher" else aim - value
                    deviations = away / spreads[name]
                    margins.append(Margin(curve.variant, curve.seed, name, value, deviations))
            known += [min(margins, key=_order)] if margins else []
        found += [max(known, key=_order)] if known else []
    return found


def _order(margin: Margin) -> float:
    return margin.deviations
