"""Trimmed means of the runs of a result, and Yuen's interval for them (rule T20)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

# The one-sided 95% quantiles of rule T21, for 1, 2, … 30 degrees of freedom, as the rule prints
# them. They are numbers of the rule, and checking a submission need not wait 0.3 s for scipy. With
# more degrees the last value is used, which is 0.05 above that of infinitely many.
ONE_SIDED_95 = (
    6.3138, 2.9200, 2.3534, 2.1318, 2.0150, 1.9432, 1.8946, 1.8595, 1.8331, 1.8125,
    1.7959, 1.7823, 1.7709, 1.7613, 1.7531, 1.7459, 1.7396, 1.7341, 1.7291, 1.7247,
    1.7207, 1.7171, 1.7139, 1.7109, 1.7081, 1.7056, 1.7033, 1.7011, 1.6991, 1.6973,
)  # fmt: skip


def one_sided_quantile(degrees: int) -> float:
    """Return the one-sided 95% quantile that rule T21 uses."""
    return ONE_SIDED_95[min(degrees, len(ONE_SIDED_95)) - 1]


@cache
def two_sided_quantile(degrees: int, confidence: float = 0.95) -> float:
    """Return the t that Student's distribution does not exceed in either direction."""
    from scipy.special import stdtrit  # here: only a score needs scipy

    return float(stdtrit(degrees, (1 + confidence) / 2))


CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95% interval, whose ends are None where too few runs remain."""

    mean: float
    low: float | None
    high: float | None


def estimate(values: Sequence[float], drop_lowest: int, drop_highest: int) -> Estimate:
    """Return the trimmed mean of non-negative values with its interval."""
    mean, half_width = trimmed_mean(values, drop_lowest, drop_highest)
    if half_width is None:
        return Estimate(mean, None, None)
    return Estimate(mean, max(0.0, mean - half_width), mean + half_width)


def trimmed_mean(
    values: Sequence[float], drop_lowest: int, drop_highest: int, confidence: float = CONFIDENCE
) -> tuple[float, float | None]:
    """Return the trimmed mean and the half width of Yuen's interval for it.

    With h values left of n, the standard error is sqrt(S / (h (h - 1))): S is the sum of squared
    deviations of the *winsorised* values, in which each dropped value is replaced by its nearest
    kept one, so that a dropped infinity costs nothing but its place. The interval is Student's with
    h - 1 degrees of freedom (K. K. Yuen, Biometrika 61 (1974) 165). The half width is None where
    h is 1. Raises ValueError where nothing or an infinite value is left.
    """
    kept = _keep(values, drop_lowest, drop_highest)
    centre = mean(kept)
    if len(kept) == 1:
        return centre, None
    winsorised = [kept[0]] * drop_lowest + kept + [kept[-1]] * drop_highest
    middle = mean(winsorised)
    squares = math.fsum((value - middle) ** 2 for value in winsorised)
    standard_error = math.sqrt(squares / (len(kept) * (len(kept) - 1)))
    return centre, two_sided_quantile(len(kept) - 1, confidence) * standard_error


def olympic_mean(values: Sequence[float], drop_lowest: int, drop_highest: int) -> float:
    """Return the trimmed mean alone.

    Raises ValueError where nothing or an infinite value is left.
    """
    return mean(_keep(values, drop_lowest, drop_highest))


def trim(values: Sequence[float], drop_lowest: int, drop_highest: int) -> Sequence[int]:
    """Return the places of the values that a trimmed mean keeps.

    Of equal values the first counts as the lower one.
    """
    ordered = sorted(range(len(values)), key=lambda number: values[number])
    return ordered[drop_lowest : len(ordered) - drop_highest]


def mean(values: Sequence[float]) -> float:
    """Return the arithmetic mean of one or more values."""
    return math.fsum(values) / len(values)


def _keep(values: Sequence[float], drop_lowest: int, drop_highest: int) -> list[float]:
    kept = [values[place] for place in trim(values, drop_lowest, drop_highest)]
    if not kept or not all(map(math.isfinite, kept)):
        raise ValueError(f"no finite values are left of {len(values)}")
    return kept
