"""Trimmed means of the runs of a result, and Yuen's interval for them (rule T20)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cepheid.compliance.score.student import two_sided_quantile

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
