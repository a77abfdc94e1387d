"""The convergence test of MLPerf's rounds: does a result need fewer epochs than the reference may?

As rcp_checker of mlperf-logging decides, with a closed form in the place of its search. Pure: it
takes counts of epochs or samples, and returns a verdict and the factor by which mlcommons
multiplies the score of a result that needs fewer than the reference's mean.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cepheid.compliance.score.trimmed import two_sided_quantile
from cepheid.rules.definition import Runs

ONE_SIDED = 0.90  # the confidence of two sides that leaves 5% on one
Verdict = Literal["pass", "fail", "missing point"]


@dataclass(frozen=True)
class Point:
    """What the reference needs at a batch size.

    ``error`` is the standard error of a result's mean beside the reference's, ``degrees`` are those
    of freedom: a t-test with equal deviations compares them.
    """

    batch_size: float
    mean: float
    deviation: float
    error: float
    degrees: int

    @property
    def least(self) -> float:
        """The least mean of a result that the test accepts at 5%."""
        if not self.error:
            return self.mean
        return self.mean - two_sided_quantile(self.degrees, ONE_SIDED) * self.error

    def find_p_value(self, needed: float) -> float:
        """Return the probability that a result as good as the reference needs no more than this."""
        if not self.error:
            return float(needed >= self.mean)
        from scipy.special import stdtr  # here: only a score needs scipy

        return float(stdtr(self.degrees, (needed - self.mean) / self.error))


@dataclass(frozen=True)
class Convergence:
    """A result compared with the reference; ``point`` is None where none can be compared with.

    ``p_value`` is that of the test, below 5% for one that fails. ``by_hull`` is the comparison with
    the convex hull of the points, where that differs.
    """

    verdict: Verdict
    batch_size: int
    mean: float
    point: Point | None = None
    p_value: float | None = None
    by_hull: "Convergence | None" = None

    @property
    def factor(self) -> float:
        """What mlcommons multiplies the score by: 1 where the result needs as many or more."""
        return max(1.0, self.point.mean / self.mean) if self.point and self.mean else 1.0


def compare(
    counts: Sequence[float],
    batch_size: int,
    reference: Mapping[int, Sequence[float]],
    runs: Runs,
    forgiven: float = 0.0,
) -> Convergence:
    """Compare a result with the reference's runs, by batch size; there is at least one of them.

    ``counts`` are infinite for runs that did not converge. ``forgiven`` is taken off what a result
    needs at least. Raises ValueError where more runs did not converge than may be dropped.
    """
    needed = _average(counts, runs.drop_slowest)
    measured = [_measure(size, of, runs) for size, of in sorted(reference.items())]
    found, by_hull = (
        _compare(needed, batch_size, points, runs, forgiven)
        for points in (prune(measured, runs), prune(measured, runs, is_hull=True))
    )
    return found if found == by_hull else replace(found, by_hull=by_hull)


def _compare(
    needed: float, batch_size: int, points: Sequence[Point], runs: Runs, forgiven: float
) -> Convergence:
    """Compare what a result needed with points, of which there is at least one."""
    smaller = [point for point in points if point.batch_size < batch_size]
    larger = [point for point in points if point.batch_size > batch_size]
    exact = next((point for point in points if point.batch_size == batch_size), None)
    if exact is None and smaller and not larger:
        return Convergence("missing point", batch_size, needed)
    point = exact or (
        _interpolate(batch_size, smaller[-1], larger[0], runs) if smaller else points[0]
    )
    is_fine = needed >= point.least - forgiven
    verdict: Verdict = "pass" if is_fine else "fail" if exact or smaller else "missing point"
    return Convergence(verdict, batch_size, needed, point, point.find_p_value(needed + forgiven))


def prune(points: Sequence[Point], runs: Runs, is_hull: bool = False) -> list[Point]:
    """Return the points that are used, in the order of their batch sizes.

    Those below the batch size that converges fastest go, and those that need more than the line
    between their neighbours. mlcommons goes on to the next point after it has removed one, so that
    what remains need not be a convex hull; ``is_hull`` looks back, and makes one.
    """
    fastest = min(points, key=lambda point: point.mean)
    kept = [point for point in points if point.batch_size >= fastest.batch_size]
    place = 1
    while place < len(kept) - 1:
        low, point, high = kept[place - 1 : place + 2]
        if point.mean > _interpolate(point.batch_size, low, high, runs).mean:
            del kept[place]
            place = max(1, place - 1) if is_hull else place
        else:
            place += 1
    return kept


def _measure(batch_size: int, counts: Sequence[float], runs: Runs) -> Point:
    mean, deviation = _average(counts, runs.drop_slowest), statistics.pstdev(counts)
    return _make_point(batch_size, mean, deviation, len(counts) - 2 * runs.drop_slowest, runs)


def _average(counts: Sequence[float], dropped: int) -> float:
    return statistics.fmean(sorted(counts)[dropped : len(counts) - dropped])


def _make_point(size: float, mean: float, deviation: float, number: int, runs: Runs) -> Point:
    submitted = runs.required - 2  # also for the benchmark that drops four at each end
    error = deviation * math.sqrt(1 / number + 1 / submitted)
    return Point(size, mean, deviation, error, number + submitted - 2)


def _interpolate(batch_size: float, low: Point, high: Point, runs: Runs) -> Point:
    share = (batch_size - low.batch_size) / (high.batch_size - low.batch_size)
    mean = low.mean + share * (high.mean - low.mean)
    deviation = low.deviation + share * (high.deviation - low.deviation)
    return _make_point(batch_size, mean, deviation, 2 * runs.required, runs)
