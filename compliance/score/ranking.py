"""Ranks that follow the statistics: results that cannot be told apart share a rank.

The rank of a result is one more than the number of results that are faster by the test of
``cepheid.compliance.score.comparison``, and never below that of a result with a better mean. Its
interval says which ranks the data allow: from there to the number of results that are not slower.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cepheid.compliance.score.comparison import Level, find_quantile, ratio

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

    That is ``ratio(first, second).low > 1``. Of n results n²/2 pairs are compared, so the exact
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
