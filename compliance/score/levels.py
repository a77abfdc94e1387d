"""What a result is ranked and compared by: its level, a mean of logarithms with its squared error.

A level of the basis *score* is seconds per sample times the samples that the reference needs at the
result's batch size; where the result converges later than the reference beyond chance, times its
own samples (rule T20). One of the basis *time* is a trimmed time to train: of MLPerf's rounds, and
of results without a score. One of the basis *speed* is seconds per image (rule T26).

The runs of one sitting share what the machine was like at that hour. Where a result has
``SITTINGS_AS_UNITS`` sittings or more, its error is that of their means, and so holds the scatter
between them. The mean is that of all runs either way.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from cepheid.compliance.score.convergence import Convergence, Loading
from cepheid.compliance.score.trimmed import Estimate, trimmed_mean, two_sided_quantile

Basis = Literal["score", "time", "speed", "own"]

CHARGED_SHARE = 0.02  # of honest results, by rule T21: the interval of a score makes room for it
SITTING_HOURS = 2.0  # from one start to the next; a longer pause begins another sitting
SITTINGS_AS_UNITS = 5
POWER_MARGIN = 0.85  # of a power of 0.8 for Student's t, in standard errors


@dataclass(frozen=True)
class Level:
    """The cost of a result as a mean of logarithms: of minutes, or of seconds per image.

    ``variance`` is the squared standard error of ``log_mean``, None where one value is left, and
    ``degrees`` are its degrees of freedom. It is that of the result alone: ``loadings`` add the
    errors of the reference's means. ``own`` is the level of the result's own times beside a score,
    and ``is_charged`` is True where the score is made of them. ``sittings`` is 0 where unknown.
    """

    log_mean: float
    variance: float | None
    degrees: int
    runs: int
    basis: Basis = "speed"
    loadings: tuple[Loading, ...] = ()
    own: "Level | None" = None
    is_charged: bool = False
    sittings: int = 0

    @property
    def resolution(self) -> float | None:
        """The least true difference that a pair of such results shows, as a share (0.05 is 5%).

        It is seen with a probability of 0.8, at the level of a single comparison.
        """
        if self.variance is None:
            return None
        quantile = two_sided_quantile(2 * self.degrees) + POWER_MARGIN
        return math.expm1(min(quantile * math.sqrt(2 * self.variance), 700.0))

    def estimate(self, confidence: float = 0.95) -> Estimate:
        """Return the mean with its interval."""
        mean = math.exp(self.log_mean)
        if self.variance is None:
            return Estimate(mean, None, None)
        half = two_sided_quantile(self.degrees, confidence) * math.sqrt(self.variance)
        return Estimate(mean, math.exp(self.log_mean - half), math.exp(self.log_mean + half))


def count_missed_allowed(runs: int) -> int:
    """Return how many runs of a result may miss their targets, if it shall have a score."""
    return runs // 10


def measure_score(
    seconds: Sequence[float], convergence: Convergence, crossings: Sequence[float],
    starts_ms: Sequence[float | None] = (),
) -> Level | None:  # fmt: skip
    """Return the level of a result's score in minutes; None without a reference, or if too early.

    ``seconds`` are those per sample of each run, evaluations included, ``crossings`` the samples
    that each needed, its budget where it did not converge.
    """
    expected = convergence.expected
    if expected is None or convergence.verdict == "early":
        return None
    speeds = [math.log(pace / 60) for pace in seconds]
    times = [speed + math.log(count) for speed, count in zip(speeds, crossings, strict=True)]
    own = replace(average(times, starts_ms), basis="own")
    if convergence.verdict == "late":
        return replace(own, basis="score", own=own, is_charged=True)
    level = average(speeds, starts_ms)
    log_mean = level.log_mean + expected.log_mean
    return replace(level, log_mean=log_mean, basis="score", loadings=expected.loadings, own=own)


def measure_times(costs: Sequence[float], drop_lowest: int, drop_highest: int) -> Level | None:
    """Return the level of a result's times to train, trimmed as the time to train is.

    The cost of a run that did not reach its target is infinite. Returns None where more of those
    are there than are dropped, or where nothing is left to average.
    """
    kept = len(costs) - drop_lowest - drop_highest
    finite = sorted(cost for cost in costs if math.isfinite(cost) and cost > 0)
    if kept < 1 or len(finite) < len(costs) - drop_highest:
        return None
    logs = [math.log(cost) for cost in finite] + [math.inf] * (len(costs) - len(finite))
    mean, half_width = trimmed_mean(logs, drop_lowest, drop_highest)
    if half_width is None:
        return Level(mean, None, 0, len(costs), "time")
    error = half_width / two_sided_quantile(kept - 1)
    return Level(mean, error * error, kept - 1, len(costs), "time")


def average(logs: Sequence[float], starts_ms: Sequence[float | None] = ()) -> Level:
    """Return the mean of logarithms, with the error of its sittings where there are enough.

    With n values in S sittings the squared error is Σₖ(nₖ(x̄ₖ − x̄))² / n² · S / (S − 1): that of the
    sittings' means where all have as many runs. Otherwise each run is a sitting of its own here.
    """
    groups = _group_sittings(starts_ms)
    count, units = len(logs), len(set(groups))
    sittings = units if groups else 0
    if units < SITTINGS_AS_UNITS:
        groups, units = list(range(count)), count
    mean = math.fsum(logs) / count
    if units < 2:
        return Level(mean, None, 0, count, sittings=sittings)
    apart = [0.0] * units
    for group, value in zip(groups, logs, strict=True):
        apart[group] += value - mean
    variance = math.fsum(value * value for value in apart) / count**2 * units / (units - 1)
    return Level(mean, variance, units - 1, count, sittings=sittings)


def _group_sittings(starts_ms: Sequence[float | None]) -> list[int]:
    """Return the number of the sitting of each run, from 0; empty where a start is unknown."""
    known = [start for start in starts_ms if start is not None and math.isfinite(start)]
    if not known or len(known) < len(starts_ms):
        return []
    ordered = sorted(known)
    begins = [ordered[0]]
    for before, start in pairwise(ordered):
        if start - before >= 3_600_000 * SITTING_HOURS:
            begins.append(start)
    return [sum(start >= begin for begin in begins) - 1 for start in known]
