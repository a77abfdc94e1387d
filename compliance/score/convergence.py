"""The test of convergence (rule T21): does a result need more or fewer samples than the reference?

Pure: it takes the samples at which runs crossed their targets. A result that crosses too early is
rejected, one that crosses late is charged with its own crossings (rule T20).

With y the logarithms of the crossings of a result's n runs, and m those of the reference's M runs:

    e = s √(1/n + 1/M), s the standard deviation of m;  early: ȳ − m̄ < −t₀.₉₉(M − 1) e, and 5%
    at least;  late: ȳ − m̄ > t₀.₉₈(M − 1) e

The result's own scatter is not in it, so that nobody passes by tripling it. Nobody gains by less
than 5%, as S is in the score (T20), but where s is small, one unusual run is beyond t e too often.
"""

import hashlib
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from cepheid.compliance.score.trimmed import one_sided_quantile
from cepheid.rules.definition import Definition
from cepheid.rules.rcp import Point, ReferencePoints

Verdict = Literal["equal", "early", "late", "missing point", "not measured"]

EARLY, LATE = 0.99, 0.98  # confidence of the two one-sided tests
LEAST_EARLY = 0.05  # of the reference's mean: what is less early than that is not rejected


@dataclass(frozen=True)
class Loading:
    """How much of a measured point is in a score: its share, and the squared error of its mean.

    ``point`` is its batch size with a digest of its runs, so that two points of one batch size
    cancel in a comparison only if they are the same one.
    """

    point: str
    share: float
    variance: float
    degrees: int


@dataclass(frozen=True)
class Expected:
    """What the reference needs at a batch size: the mean of the logarithms of its crossings.

    ``scatter`` is the standard deviation of the logarithm of one crossing. ``is_interpolated`` is
    False where the curves of a point were not kept: its runs then crossed somewhere in the interval
    before the evaluation at which they ended.
    """

    batch_size: int
    log_mean: float
    scatter: float
    loadings: tuple[Loading, ...]
    is_interpolated: bool = True

    @property
    def mean(self) -> float:
        """The geometric mean of the crossings, in samples."""
        return math.exp(self.log_mean)

    @property
    def degrees(self) -> int:
        """The degrees of freedom of the scatter."""
        return min(loading.degrees for loading in self.loadings)

    def find_error(self, runs: int) -> float:
        """Return the standard error of the difference between a result of so many runs and this."""
        of_mean = math.fsum(loading.share**2 * loading.variance for loading in self.loadings)
        return math.sqrt(self.scatter**2 / runs + of_mean)

    def find_limits(self, runs: int) -> tuple[float, float]:
        """Return the least and the greatest plausible mean of a result of so many runs."""
        error = self.find_error(runs)
        early, late = (one_sided_quantile(one, self.degrees) for one in (EARLY, LATE))
        least = math.exp(self.log_mean - early * error)
        return min(least, (1 - LEAST_EARLY) * self.mean), math.exp(self.log_mean + late * error)


@dataclass(frozen=True)
class Convergence:
    """A result compared with the reference.

    ``samples`` is the geometric mean of the result's crossings. ``expected`` is None where there is
    no reference at its batch size, and then so is ``statistic``, the t of the test.
    """

    verdict: Verdict
    batch_size: int
    samples: float
    runs: int
    expected: Expected | None = None
    statistic: float | None = None

    @property
    def factor(self) -> float | None:
        """Samples of the reference per sample of the result; above 1 the result needs fewer."""
        return None if self.expected is None else self.expected.mean / self.samples


def compare(
    crossings: Sequence[float],
    batch_size: int,
    points: ReferencePoints | None,
    definition: Definition,
) -> Convergence:
    """Compare the crossings of a result's runs with those of the reference.

    A run that did not converge counts with its budget. Points of another version of the definition
    are not used.
    """
    known = list_expected(points, definition) if points else ()
    expected = interpolate(known, batch_size)
    if expected is not None:
        return judge(crossings, batch_size, expected)
    samples = math.exp(statistics.fmean([math.log(count) for count in crossings]))
    return Convergence(
        "missing point" if known else "not measured", batch_size, samples, len(crossings)
    )


def judge(crossings: Sequence[float], batch_size: int, expected: Expected) -> Convergence:
    """Judge the crossings of a result's runs by what the reference needs at its batch size."""
    own, runs = statistics.fmean([math.log(count) for count in crossings]), len(crossings)
    samples, (least, greatest) = math.exp(own), expected.find_limits(runs)
    verdict: Verdict = "early" if samples < least else "late" if samples > greatest else "equal"
    error = expected.find_error(runs)
    statistic = (own - expected.log_mean) / error if error else None
    return Convergence(verdict, batch_size, samples, runs, expected, statistic)


def list_expected(points: ReferencePoints, definition: Definition) -> tuple[Expected, ...]:
    """List what the reference needs at each batch size that can be used, the smallest first."""
    if not points.belongs_to(definition):
        return ()
    return tuple(measure_point(point, definition) for point in points.points if point.is_usable)


def interpolate(known: Sequence[Expected], batch_size: int) -> Expected | None:
    """Return what the reference would need at a batch size; None outside of the measured ones.

    Between two measured ones, the logarithm of the samples is interpolated linearly in that of the
    batch size.
    """
    for one in known:
        if one.batch_size == batch_size:
            return one
    for low, high in pairwise(known):
        if low.batch_size < batch_size < high.batch_size:
            way = math.log(high.batch_size / low.batch_size)
            share = math.log(batch_size / low.batch_size) / way
            shares = ((low, 1 - share), (high, share))
            log_mean = math.fsum(part * one.log_mean for one, part in shares)
            scatter = math.sqrt(math.fsum(part * one.scatter**2 for one, part in shares))
            loadings = tuple(
                Loading(each.point, part * each.share, each.variance, each.degrees)
                for one, part in shares
                for each in one.loadings
            )
            is_interpolated = low.is_interpolated and high.is_interpolated
            return Expected(batch_size, log_mean, scatter, loadings, is_interpolated)
    return None


def measure_point(point: Point, definition: Definition) -> Expected:
    """Measure what the reference needs at a batch size from the crossings of its runs.

    Where the curves were not kept, each run is taken to have crossed in the middle of the interval
    before its last evaluation. The true crossings may lie anywhere in it, all of them on one side:
    a twelfth of the squared interval is added to the squared scatter, and to the error of the mean.
    """
    counts, crossings = point.samples, point.crossings
    interval = 0.0
    if not crossings:
        every = max(definition.timing.eval_every_samples, point.batch_size)
        widths = [min(every, count) for count in counts]
        crossings = tuple(count - width / 2 for count, width in zip(counts, widths, strict=True))
        interval = statistics.fmean(widths) / statistics.fmean(crossings)
    logs = [math.log(count) for count in crossings]
    unseen = interval**2 / 12
    scatter = math.sqrt(statistics.variance(logs) + unseen)
    digest = hashlib.sha256(repr(crossings).encode()).hexdigest()[:8]
    loading = Loading(
        f"{point.batch_size}-{digest}", 1.0, scatter**2 / len(logs) + unseen, len(logs) - 1
    )
    return Expected(point.batch_size, statistics.fmean(logs), scatter, (loading,), not interval)
