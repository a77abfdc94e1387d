"""Trimmed means of times with Yuen's interval, and Student's quantiles (rules T20, T21)."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

# The one-sided quantiles of rule T21, for 1, 2, … 39 degrees of freedom. They are numbers of the
# rule, and checking a submission need not wait 0.3 s for scipy. With more degrees the last value is
# used, which is 0.1 above that of infinitely many.
ONE_SIDED: Mapping[float, Sequence[float]] = {
    0.99: (
        31.820516, 6.964557, 4.540703, 3.746947, 3.364930, 3.142668, 2.997952, 2.896459,
        2.821438, 2.763769, 2.718079, 2.680998, 2.650309, 2.624494, 2.602480, 2.583487,
        2.566934, 2.552380, 2.539483, 2.527977, 2.517648, 2.508325, 2.499867, 2.492159,
        2.485107, 2.478630, 2.472660, 2.467140, 2.462021, 2.457262, 2.452824, 2.448678,
        2.444794, 2.441150, 2.437723, 2.434494, 2.431447, 2.428568, 2.425841,
    ),
    0.98: (
        15.894545, 4.848732, 3.481909, 2.998528, 2.756509, 2.612242, 2.516752, 2.448985,
        2.398441, 2.359315, 2.328140, 2.302722, 2.281604, 2.263781, 2.248540, 2.235358,
        2.223845, 2.213703, 2.204701, 2.196658, 2.189427, 2.182893, 2.176958, 2.171545,
        2.166587, 2.162029, 2.157825, 2.153935, 2.150325, 2.146966, 2.143833, 2.140904,
        2.138159, 2.135581, 2.133157, 2.130871, 2.128714, 2.126674, 2.124742,
    ),
}  # fmt: skip


def one_sided_quantile(confidence: float, degrees: int) -> float:
    """Return a one-sided quantile that rule T21 uses: of 0.99 or 0.98."""
    known = ONE_SIDED[confidence]
    return known[min(degrees, len(known)) - 1]


@cache
def two_sided_quantile(degrees: float, confidence: float = 0.95) -> float:
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
    kept = [values[place] for place in trim(values, drop_lowest, drop_highest)]
    if not kept or not all(map(math.isfinite, kept)):
        raise ValueError(f"no finite values are left of {len(values)}")
    centre = statistics.fmean(kept)
    if len(kept) == 1:
        return centre, None
    winsorised = [kept[0]] * drop_lowest + kept + [kept[-1]] * drop_highest
    middle = statistics.fmean(winsorised)
    squares = math.fsum((value - middle) ** 2 for value in winsorised)
    standard_error = math.sqrt(squares / (len(kept) * (len(kept) - 1)))
    return centre, two_sided_quantile(len(kept) - 1, confidence) * standard_error


def trim(values: Sequence[float], drop_lowest: int, drop_highest: int) -> Sequence[int]:
    """Return the places of the values that a trimmed mean keeps.

    Of equal values the first counts as the lower one.
    """
    ordered = sorted(range(len(values)), key=lambda number: values[number])
    return ordered[drop_lowest : len(ordered) - drop_highest]
