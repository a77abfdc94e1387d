"""Results that are drawn at random and scored as rules T20 to T22 say, many at a time with numpy.

All numbers are natural logarithms: of seconds per sample, and of crossings, whose true means are
0. ``tests/measure/resolution/test_resolution.py`` compares single draws with
``cepheid.compliance.score``, which computes the scores of real results.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cepheid.compliance.score.convergence import EARLY, LATE, LEAST_EARLY
from cepheid.compliance.score.levels import CHARGED_SHARE
from cepheid.compliance.score.trimmed import one_sided_quantile

if TYPE_CHECKING:  # not part of the core
    import numpy as np
    from numpy.random import Generator
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Places = NDArray[np.intp]

LEVEL = 0.05
POWER = 0.8
LARGEST = math.log(10.0)  # no difference beyond ten times is looked for


@dataclass(frozen=True)
class Setting:
    """How many runs results and reference have, and how both scatter.

    ``spread`` is the standard deviation of the logarithm of seconds per sample between runs.
    ``draw`` draws logarithms of crossings in a shape; None for a benchmark that generates.
    """

    runs: int
    reference_runs: int
    spread: float
    draw: "Callable[[Generator, tuple[int, ...]], Array] | None"


@dataclass(frozen=True)
class Draws:
    """Results against one reference each table: arrays of (tables, systems), and of (tables, 1).

    ``loading`` is 1 where the reference's mean is in the score, 0 where the result is charged.
    """

    value: "Array"
    variance: "Array"
    loading: "Array"
    own: "Array"
    own_variance: "Array"
    reference_mean: "Array"
    reference_variance: "Array"
    is_early: "NDArray[np.bool_]"
    runs: int
    reference_runs: int


def draw_results(
    setting: Setting, source: "Generator", tables: int, systems: int = 1, later: float = 0.0
) -> Draws:
    """Draw results; ``later`` is added to the logarithm of their crossings."""
    import numpy as np

    n, m = setting.runs, setting.reference_runs
    speeds = source.normal(0, setting.spread, (tables, systems, n))
    zero = np.zeros((tables, systems))
    if setting.draw is None:
        mean, variance = speeds.mean(-1), speeds.var(-1, ddof=1) / n
        none = np.zeros((tables, 1))
        return Draws(mean, variance, zero, mean, variance, none, none, zero > 0, n, 2)
    crossings = setting.draw(source, (tables, systems, n)) + later
    reference = setting.draw(source, (tables, 1, m))
    times = speeds + crossings
    apart = crossings.mean(-1) - reference.mean(-1)
    error = reference.std(-1, ddof=1) * math.sqrt(1 / n + 1 / m)
    early = np.maximum(one_sided_quantile(EARLY, m - 1) * error, -math.log1p(-LEAST_EARLY))
    is_late = apart > one_sided_quantile(LATE, m - 1) * error
    return Draws(
        value=np.where(is_late, times.mean(-1), speeds.mean(-1) + reference.mean(-1)),
        variance=np.where(is_late, times.var(-1, ddof=1), speeds.var(-1, ddof=1)) / n,
        loading=1.0 - is_late,
        own=times.mean(-1),
        own_variance=times.var(-1, ddof=1) / n,
        reference_mean=reference.mean(-1),
        reference_variance=reference.var(-1, ddof=1) / m,
        is_early=apart < -early,
        runs=n,
        reference_runs=m,
    )


def find_coverage(draws: Draws) -> tuple[float, float]:
    """Return how often the interval holds the truth: the reference's mean given, and not given."""
    from scipy.special import stdtrit

    truth = draws.reference_mean
    level = LEVEL if not draws.loading.any() else LEVEL - CHARGED_SHARE
    half = stdtrit(draws.runs - 1, 1 - level / 2) * draws.variance**0.5
    given = (abs(draws.value - truth) <= half).mean()
    total, degrees = _combine(
        (draws.variance, draws.runs - 1),
        (draws.loading**2 * draws.reference_variance, draws.reference_runs - 1),
    )
    whole = (abs(draws.value) <= stdtrit(degrees, 1 - LEVEL / 2) * total**0.5).mean()
    return float(given), float(whole)


def find_probabilities(draws: Draws, first: "Places", second: "Places", faster: float) -> "Array":
    """Return the p of pairs of systems, (tables, pairs), the first of which is so much faster."""
    import numpy as np
    from scipy.special import stdtr

    def test(mean: "Array", variance: "Array", load: "Array") -> "Array":
        total, degrees = _combine(
            (variance[:, first], draws.runs - 1),
            (variance[:, second], draws.runs - 1),
            ((load[:, first] - load[:, second]) ** 2 * draws.reference_variance,
             draws.reference_runs - 1),
        )  # fmt: skip
        apart = np.abs(mean[:, second] - mean[:, first] + faster)
        return np.asarray(2 * stdtr(degrees, -apart / np.sqrt(total)))

    found = test(draws.value, draws.variance, draws.loading)
    if not draws.loading.any():
        return found
    own = test(draws.own, draws.own_variance, 0 * draws.loading)
    mixed = draws.loading[:, first] != draws.loading[:, second]
    return np.where(mixed, np.maximum(found, own), found)


def find_resolution(draws: Draws, level: float) -> float:
    """Return the smallest difference that a pair shows with probability 0.8, as a share.

    Infinite where even ten times as fast is not seen so often.
    """
    import numpy as np

    low, high = 0.0, LARGEST
    first, second = np.array([0]), np.array([1])
    for _ in range(30):
        middle = (low + high) / 2
        seen = (find_probabilities(draws, first, second, middle) <= level).mean()
        low, high = (low, middle) if seen >= POWER else (middle, high)
    return math.inf if high >= LARGEST - 1e-6 else math.expm1(high)


def find_false_ranks(draws: Draws) -> float:
    """Return the share of tables of equal systems in which Holm's procedure tells any two apart.

    That is where the smallest of the p is at most the level over the number of pairs.
    """
    import numpy as np

    first, second = np.triu_indices(draws.value.shape[1], 1)
    least = find_probabilities(draws, first, second, 0.0).min(-1)
    return float((least <= LEVEL / len(first)).mean())


def _combine(*parts: tuple["Array", float]) -> tuple["Array", "Array"]:
    """Return the sum of squared errors with Welch and Satterthwaite's degrees of freedom."""
    total = sum(error for error, _ in parts[1:]) + parts[0][0]
    shares = sum(error**2 / degrees for error, degrees in parts[1:])
    shares = shares + parts[0][0] ** 2 / parts[0][1]
    return total, total**2 / shares
