"""Compare and rank results: ratios with intervals, from few runs (rules T20, T22).

Two results are compared by the difference of their levels, means of logarithms, so that the
interval of a ratio is that of its inverse turned round, and no interval reaches below zero:

    ln ratio ∈ xᵇ − xᵃ ± t₀.₉₇₅(ν) √(Σ parts), with Welch and Satterthwaite's degrees of freedom
    ν = (Σ parts)² / Σ (part² / degrees); rounded down for trimmed times, whose error is Yuen's
    (K. K. Yuen, Biometrika 61 (1974) 165) and a little too small with few runs

The parts are the squared errors of both results, and of each reference point that is not in both
scores alike. Where exactly one of the two is charged with its own samples, a difference must also
hold between their own times: else those who were caught late would rank below those who were not.

Where the interval contains 1, no difference can be claimed. What has no interval is never faster.

Ranks are those of a table: of n results n(n − 1)/2 pairs are compared, and Holm's procedure keeps
the probability that any two equal ones are told apart at 5% (S. Holm, Scand. J. Statist. 6 (1979)
65). The rank of a result is one more than the number of those with a smaller cost that are
different by it, and never below that of a result with a smaller cost. Its interval says which ranks
the data allow: from there to the number of results that are not slower.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cepheid.compliance.score.levels import Level
from cepheid.compliance.score.trimmed import two_sided_quantile

if TYPE_CHECKING:  # not part of the core
    import numpy as np
    from numpy.typing import NDArray

LEVEL = 0.05  # of a pair, and of a whole table

Part = tuple[float, float]
"""A squared error with its degrees of freedom."""


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


def ratio(fast: Level, slow: Level) -> Ratio:
    """Return how many times as fast ``fast`` is as ``slow``, from their costs."""
    return mean_ratio([(fast, slow)])


def mean_ratio(pairs: Sequence[tuple[Level, Level]]) -> Ratio:
    """Return how many times as fast the first of each pair is, as a geometric mean over the pairs.

    The squared errors of all levels add up, whichever benchmark they are from. Where a pair has a
    score and a time, their own times are compared.
    """
    like = [pair if pair[0].basis == pair[1].basis else _use_own(*pair) for pair in pairs]
    runs = tuple(one.runs for pair in pairs for one in pair)
    middle, ends = _measure(like)
    if ends and any(fast.is_charged != slow.is_charged for fast, slow in like):
        own = [
            pair if pair[0].is_charged == pair[1].is_charged else _use_own(*pair) for pair in like
        ]
        _, others = _measure(own)
        ends = (min(ends[0], others[0]), max(ends[1], others[1])) if others else None
    low, high = map(math.exp, ends) if ends else (None, None)
    return Ratio(math.exp(middle), low, high, runs)


def _use_own(fast: Level, slow: Level) -> tuple[Level, Level]:
    return fast.own or fast, slow.own or slow


def _measure(pairs: Sequence[tuple[Level, Level]]) -> tuple[float, tuple[float, float] | None]:
    """Return the mean logarithm of the ratios, and the ends of its interval, None without one."""
    count = len(pairs)
    middle = math.fsum(slow.log_mean - fast.log_mean for fast, slow in pairs) / count
    parts: list[Part] = []
    for pair in pairs:
        for one in pair:
            if one.variance is None:
                return middle, None
            parts.append((one.variance / count**2, one.degrees))
        parts += [(part / count**2, degrees) for part, degrees in _list_point_parts(*pair)]
    total = math.fsum(part for part, _ in parts)
    degrees = find_degrees(parts)
    if any(one.basis == "time" for pair in pairs for one in pair):
        degrees = max(1, math.floor(degrees + 1e-9))
    half = two_sided_quantile(degrees) * math.sqrt(total)
    return middle, (middle - half, middle + half)


def _list_point_parts(fast: Level, slow: Level) -> Iterable[Part]:
    """Return the squared error of each reference point in the difference of two scores."""
    shares: dict[str, tuple[float, float, float]] = {}
    for sign, level in ((1, fast), (-1, slow)):
        for one in level.loadings:
            share, *_ = shares.get(one.point, (0.0,))
            shares[one.point] = share + sign * one.share, one.variance, one.degrees
    return [(share**2 * error, degrees) for share, error, degrees in shares.values() if share]


def find_degrees(parts: Sequence[Part]) -> float:
    """Return Welch and Satterthwaite's degrees of freedom for a sum of squared errors."""
    total = math.fsum(part for part, _ in parts)
    if total <= 0:
        return sum(degrees for _, degrees in parts)
    return 1 / math.fsum((part / total) ** 2 / degrees for part, degrees in parts)


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
        f"{first} is {format_ratio(speed.value)} times as fast as {second}, {interval} "
        f"({runs} runs)."
    )


def format_ratio(value: float) -> str:
    """Format a ratio with two decimals, fewer if it is large, more if it would look like 1."""
    if abs(value - 1) < 0.005:
        return f"{value:.4f}"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


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
    """Return the rank of each result; ``levels`` are sorted, the fastest first."""
    faster = [0] * len(levels)
    slower = [0] * len(levels)
    for ahead, behind in find_different_pairs(levels):
        faster[behind] += 1
        slower[ahead] += 1
    ranks: list[Rank] = []
    for one, other in zip(faster, slower, strict=True):
        best = 1 + one
        value = max(best, ranks[-1].value) if ranks else best
        ranks.append(Rank(value, best, len(levels) - other))
    return ranks


def find_different_pairs(levels: Sequence[Level]) -> list[tuple[int, int]]:
    """Return the pairs of places that Holm's procedure tells apart, the faster one first.

    ``levels`` have one basis and are sorted, the fastest first.
    """
    places = [place for place, level in enumerate(levels) if level.variance is not None]
    if len(places) < 2:
        return []
    import numpy as np  # here: only ranks need it

    first, second = np.triu_indices(len(places), 1)
    probabilities = find_probabilities([levels[place] for place in places], first, second)
    count = len(probabilities)
    order = np.argsort(probabilities, kind="stable")
    fails = np.flatnonzero(probabilities[order] > LEVEL / (count - np.arange(count)))
    chosen = order[: fails[0] if fails.size else count]
    return [(places[first[pair]], places[second[pair]]) for pair in chosen]


def find_probabilities(
    levels: Sequence[Level], first: "NDArray[np.intp]", second: "NDArray[np.intp]"
) -> "NDArray[np.float64]":
    """Return the p of each pair of levels, whose variances are known."""
    import numpy as np

    found = _test_pairs(levels, first, second)
    charged = np.array([level.is_charged for level in levels])
    mixed = np.flatnonzero(charged[first] != charged[second])
    if mixed.size:
        own = [level.own or level for level in levels]
        found[mixed] = np.maximum(found[mixed], _test_pairs(own, first[mixed], second[mixed]))
    return found


def _test_pairs(
    levels: Sequence[Level], first: "NDArray[np.intp]", second: "NDArray[np.intp]"
) -> "NDArray[np.float64]":
    """Return the p of Welch's test for each pair; 0 where two differ and neither scatters."""
    import numpy as np
    from scipy.special import stdtr

    mean = np.array([level.log_mean for level in levels])
    error = np.array([level.variance or 0.0 for level in levels])
    degrees = np.array([level.degrees for level in levels])
    total = error[first] + error[second]
    shares = error[first] ** 2 / degrees[first] + error[second] ** 2 / degrees[second]
    for point in dict.fromkeys(one.point for level in levels for one in level.loadings):
        known = [{one.point: one for one in level.loadings}.get(point) for level in levels]
        of_point = next(one for one in known if one)
        share = np.array([one.share if one else 0.0 for one in known])
        part = (share[first] - share[second]) ** 2 * of_point.variance
        total, shares = total + part, shares + part**2 / of_point.degrees
    apart = np.abs(mean[first] - mean[second])
    with np.errstate(divide="ignore", invalid="ignore"):
        freedom = total**2 / shares
        if any(level.basis == "time" for level in levels):
            freedom = np.maximum(1, np.floor(freedom + 1e-9))
        found = 2 * stdtr(freedom, -apart / np.sqrt(total))
    return np.where(total > 0, found, np.where(apart > 0, 0.0, 1.0))
