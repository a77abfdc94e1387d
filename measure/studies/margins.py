"""How safely targets separate: the chance that a seed misses them, and how far broken models stay.

Few seeds can be enough where both margins are wide; these numbers say how wide they are.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cepheid.rules.definition import Definition, QualityTarget
from cepheid.rules.evidence import Curve, Evidence


@dataclass(frozen=True)
class NearestBroken:
    """The evaluation of a broken model that comes nearest to the targets.

    Of the targets that it misses, ``metric`` is missed by the most ``deviations``: standard
    deviations of what the correct seeds have when they reach the targets.
    """

    variant: str
    seed: int
    metric: str
    value: float
    target: float
    deviations: float


def estimate_miss_probability(recorded: Evidence, definition: Definition) -> float | None:
    """Return the probability that one more seed of the correct model misses the targets.

    It is that of Student's t for one more draw from a normal distribution of which the seeds are a
    sample. A training misses if it needs more samples than its budget; the spread of what seeds
    need counts as one evaluation interval at least, because nothing finer is seen. A run that
    generates misses if one of its metrics does: their probabilities are added. None for fewer than
    two seeds that reach the targets.
    """
    reached = find_reaching(recorded, definition)
    if len(reached) < 2:
        return None
    if definition.kind == "train":
        least_spread = definition.timing.eval_every_samples
        needed = [float(samples) for samples, _ in reached]
        return _estimate_chance_above(needed, definition.timing.max_samples, least_spread)
    by_metric = [
        _estimate_chance_above(
            [_turn(target, quality[target.metric]) for _, quality in reached], limit
        )
        for target in definition.quality
        for limit in [_turn(target, target.target)]
    ]
    return min(1.0, sum(by_metric))


def find_nearest_broken(recorded: Evidence, definition: Definition) -> NearestBroken | None:
    """Return the broken run that comes nearest to the targets; None if there is no such run."""
    spreads = _measure_spreads(recorded, definition)
    nearest = [
        min(found, key=lambda one: one.deviations)
        for curve in recorded.broken
        if (found := _list_shortfalls(curve, definition.quality, spreads))
    ]
    return min(nearest, key=lambda one: one.deviations, default=None)


def find_reaching(
    recorded: Evidence, definition: Definition
) -> list[tuple[int, Mapping[str, float]]]:
    """Return samples and metrics of each correct run at its first evaluation with all targets."""
    found = [curve.find_reaching(definition) for curve in recorded.correct]
    return [each for each in found if each]


def _measure_spreads(recorded: Evidence, definition: Definition) -> dict[str, float]:
    """Return the standard deviation of each metric over the correct seeds, if it is known."""
    reached = find_reaching(recorded, definition)
    if len(reached) < 2:
        return {}
    names = [target.metric for target in definition.quality]
    spreads = {name: statistics.stdev(quality[name] for _, quality in reached) for name in names}
    return {name: spread for name, spread in spreads.items() if spread > 0}


def _list_shortfalls(
    curve: Curve, targets: Sequence[QualityTarget], spreads: dict[str, float]
) -> list[NearestBroken]:
    """Return for each evaluation the metric that misses its target by the most deviations."""
    found = []
    for _, quality in curve.evaluations:
        missed = []
        for target in targets:
            value, name = quality[target.metric], target.metric
            short = _turn(target, value) - _turn(target, target.target)
            if short > 0 and name in spreads:
                deviations = short / spreads[name]
                missed.append(
                    NearestBroken(curve.variant, curve.seed, name, value, target.target, deviations)
                )
        if missed:
            found.append(max(missed, key=lambda one: one.deviations))
    return found


def _turn(target: QualityTarget, value: float) -> float:
    """Return a value such that less is better."""
    return value if target.better == "lower" else -value


def _estimate_chance_above(
    values: Sequence[float], limit: float, least_spread: float = 0.0
) -> float:
    """Return the probability that one more draw is above ``limit`` (Student's t)."""
    from scipy.special import stdtr

    count, mean = len(values), statistics.fmean(values)
    spread = max(statistics.stdev(values), least_spread)
    if spread == 0:
        return float(limit < mean)
    distance = (limit - mean) / (spread * math.sqrt(1 + 1 / count))
    return float(stdtr(count - 1, -distance))
