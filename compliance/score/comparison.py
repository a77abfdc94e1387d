"""Compare and rank results: ratios with intervals, from few runs.

The runs of a result are trimmed like those of its score (rule T20), so that a run that did not
converge costs its place and no more. Their *logarithms* are averaged: the interval of a ratio is
then that of its inverse turned round, and no interval reaches below zero.

Two results are compared by
Yuen's test for trimmed means with unequal variances (K. K. Yuen, Biometrika 61 (1974) 165):

    x̄ₜ the trimmed mean, s² = S / (h (h − 1)) its squared standard error, h values left of n,
    S the winsorised sum of squares; ln ratio ∈ x̄ₜᵇ − x̄ₜᵃ ± t₀.₉₇₅(ν) √(s²ᵃ + s²ᵇ),
    ν = (s²ᵃ + s²ᵇ)² / (s⁴ᵃ / (hᵃ − 1) + s⁴ᵇ / (hᵇ − 1)), rounded down, so a little too careful.

Where the interval contains 1, no difference can be claimed. Each interval stands for itself: of
twenty comparisons of equal systems, one is expected to claim a difference.

Ranks follow the statistics: results that cannot be told apart share a rank. The rank of a result is
one more than the number of results that are faster by this test, and never below that of a result
with a better mean. Its interval says which ranks the data allow: from there to the number of
results that are not slower.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cepheid.compliance.score.trimmed import trimmed_mean, two_sided_quantile

DEGREES_MAX = 200  # in the table of quantiles; more degrees use its last entry


@dataclass(frozen=True)
class Level:
    """The cost of a result, as the trimmed mean of the logarithms of its runs' costs.

    ``variance`` is the squared standard error of ``log_mean``, None where one value is left.
    ``degrees`` is the number of values left, less one.
    """

    log_mean: float
    variance: float | None
    degrees: int
    runs: int


@dataclass(frozen=True)
class Ratio:
    """How many times as fast one result is as another; the ends are None with too few runs."""

    value: float
    low: float | None
    high: float | None
    runs: tuple[int, ...]

    @property
    def is_difference(self) -> bool:
        """True where the interval leaves out 1."""
        return self.low is not None and self.high is not None and not self.low <= 1 <= self.high

    @property
    def inverse(self) -> "Ratio":
        """The same comparison, seen from the other result."""
        low, high = (None if end is None else 1 / end for end in (self.high, self.low))
        return Ratio(1 / self.value, low, high, self.runs[::-1])


def measure_level(costs: Sequence[float], drop_lowest: int, drop_highest: int) -> Level | None:
    """Return the level of a result whose runs cost this much: minutes, or seconds per image.

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
        return Level(mean, None, 0, len(costs))
    error = half_width / find_quantile(kept - 1)
    return Level(mean, error * error, kept - 1, len(costs))


def ratio(fast: Level, slow: Level) -> Ratio:
    """Return how many times as fast ``fast`` is as ``slow``, from their costs."""
    return mean_ratio([(fast, slow)])


def mean_ratio(pairs: Sequence[tuple[Level, Level]]) -> Ratio:
    """Return how many times as fast the first of each pair is, as a geometric mean over the pairs.

    The squared errors of all levels add up, whichever benchmark they are from (Welch and
    Satterthwaite's degrees of freedom).
    """
    count = len(pairs)
    middle = math.fsum(slow.log_mean - fast.log_mean for fast, slow in pairs) / count
    runs = tuple(one.runs for pair in pairs for one in pair)
    parts = [(one.variance, one.degrees) for pair in pairs for one in pair]
    known = [(part / count**2, degrees) for part, degrees in parts if part is not None]
    if len(known) < len(parts):
        return Ratio(math.exp(middle), None, None, runs)
    half_width = find_quantile(degrees_of_freedom(known)) * math.sqrt(
        sum(part for part, _ in known)
    )
    low, high = math.exp(middle - half_width), math.exp(middle + half_width)
    return Ratio(math.exp(middle), low, high, runs)


def degrees_of_freedom(parts: Sequence[tuple[float, int]]) -> int:
    """Return Welch and Satterthwaite's degrees of freedom for a sum of squared errors.

    Each part is a squared error with its own degrees of freedom. The result is rounded down.
    """
    total = math.fsum(part for part, _ in parts)
    if total <= 0:
        return sum(degrees for _, degrees in parts)
    shares = math.fsum((part / total) ** 2 / degrees for part, degrees in parts)
    return max(1, math.floor(1 / shares + 1e-9))


def find_quantile(degrees: int) -> float:
    """Return the two-sided 95% quantile of Student's t, from the table that the site has too."""
    return two_sided_quantile(min(degrees, DEGREES_MAX))


def describe(first: str, second: str, speed: Ratio) -> str:
    """Describe a comparison in plain words."""
    runs = " and ".join(map(str, speed.runs))
    if speed.low is None or speed.high is None:
        return (
            f"{first} against {second}: ratio {format_ratio(speed.value)}; "
            f"{runs} runs are too few for an interval, no difference can be claimed."
        )
    interval = f"95% interval {format_ratio(speed.low)}–{format_ratio(speed.high)}"
    if not speed.is_difference:
        return (
            f"No difference between {first} and {second} can be claimed from {runs} runs: "
            f"ratio {format_ratio(speed.value)}, {interval}."
        )
    if speed.value < 1:
        return describe(second, first, speed.inverse)
    return (
        f"{first} is {format_ratio(speed.value)}× faster than {second}, {interval} ({runs} runs)."
    )


def format_ratio(value: float) -> str:
    """Format a ratio with two decimals, fewer if it is large, more if it would look like 1."""
    if abs(value - 1) < 0.005:
        return f"{value:.4f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


# Room for rounding, within which the full computation decides.
LEAST_DOUBT, MOST_DOUBT = 1 - 1e-9, 1 + 1e-9


@dataclass(frozen=True)
class Rank:
    """The rank of a result, and the best and worst that the data allow; 1 is best."""

    value: int
    best: int
    worst: int

    @property
    def interval(self) -> str:
        """``2``, or ``1 to 3``."""
        return str(self.best) if self.best == self.worst else f"{self.best} to {self.worst}"


def rank_levels(levels: Sequence[Level]) -> list[Rank]:
    """Return the rank of each result; ``levels`` are sorted, the fastest first.

    A result of too few runs for an interval is ranked by its place alone.
    """
    faster = [0] * len(levels)
    slower = [0] * len(levels)
    for place, level in enumerate(levels):
        for ahead in range(place):
            if _is_faster(levels[ahead], level):
                faster[place] += 1
                slower[ahead] += 1
    ranks: list[Rank] = []
    for one, other in zip(faster, slower, strict=True):
        best = 1 + one
        value = max(best, ranks[-1].value) if ranks else best
        ranks.append(Rank(value, best, len(levels) - other))
    return ranks


def _is_faster(first: Level, second: Level) -> bool:
    """Return True if ``first``, with the better mean, is faster beyond doubt or has no interval.

    That is ``ratio(first, second).low > 1``. Of n results n²/2 pairs are speed, so the exact
    degrees of freedom are computed only where they decide: they lie between the fewer degrees of
    the two and the sum of both.
    """
    if first.variance is None or second.variance is None:
        return True
    apart = second.log_mean - first.log_mean
    error = math.sqrt(first.variance + second.variance)
    if apart <= LEAST_DOUBT * find_quantile(first.degrees + second.degrees) * error:
        return False
    if apart > MOST_DOUBT * find_quantile(min(first.degrees, second.degrees)) * error:
        return True
    low = ratio(first, second).low
    return low is None or low > 1
