"""The RCP test (rule T21): does a result need implausibly fewer samples than the reference?

Pure: it takes counts of samples and returns a verdict and a factor. The factor is there to be read;
no score is multiplied by it.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from cepheid.compliance.score.trimmed import olympic_mean, one_sided_quantile
from cepheid.rules.definition import Definition
from cepheid.rules.rcp import Point, ReferencePoints

Verdict = Literal["pass", "fail", "missing point", "not measured"]


@dataclass(frozen=True)
class Expected:
    """The number of samples that the reference needs at a batch size.

    ``mean`` is the olympic mean of its runs, ``least`` the smallest plausible mean of a result.
    """

    batch_size: int
    mean: float
    least: float


@dataclass(frozen=True)
class Convergence:
    """A result compared with the reference.

    ``samples`` is the result's olympic mean. ``expected`` is None unless the verdict is pass or
    fail.
    """

    verdict: Verdict
    batch_size: int
    samples: float
    expected: Expected | None = None

    @property
    def factor(self) -> float | None:
        """Samples of the reference per sample of the result; above 1 the result needs fewer."""
        if self.expected is None or self.samples <= 0:
            return None
        return self.expected.mean / self.samples


def compare(
    samples: Sequence[float],
    batch_size: int,
    points: ReferencePoints | None,
    definition: Definition,
) -> Convergence:
    """Compare the samples to target of a result's runs with those of the reference.

    ``samples`` is infinite for a run that did not converge. Points of another version of the
    definition are not used. Raises ValueError where more runs did not converge than may be dropped.
    """
    mean = _olympic_mean(samples, definition)
    known = list_expected(points, definition) if points else ()
    if not known:
        return Convergence("not measured", batch_size, mean)
    expected = interpolate(known, batch_size)
    if expected is None:  # a larger batch needs as many samples as a smaller one, or more
        if mean < known[-1].least:
            return Convergence("fail", batch_size, mean, known[-1])
        return Convergence("missing point", batch_size, mean)
    return Convergence("pass" if mean >= expected.least else "fail", batch_size, mean, expected)


def list_expected(points: ReferencePoints, definition: Definition) -> tuple[Expected, ...]:
    """List what the reference needs at each batch size that can be used, the smallest first."""
    if not points.belongs_to(definition):
        return ()
    return tuple(_expect(point, definition) for point in points.points if point.is_usable)


def interpolate(known: Sequence[Expected], batch_size: int) -> Expected | None:
    """Return what the reference would need at any batch size.

    Between two measured ones it is interpolated linearly, below the smallest it is that of the
    smallest, and above the largest it is None.
    """
    if batch_size <= known[0].batch_size:
        return known[0]
    for low, high in pairwise(known):
        if batch_size <= high.batch_size:
            share = (batch_size - low.batch_size) / (high.batch_size - low.batch_size)
            return Expected(
                batch_size,
                low.mean + share * (high.mean - low.mean),
                low.least + share * (high.least - low.least),
            )
    return None


def _expect(point: Point, definition: Definition) -> Expected:
    """Return the smallest plausible mean, mean − t₀.₉₅(n − 1) · s · √(1/n_ref + 1/n_sub) (T21)."""
    samples, runs = point.samples, definition.runs
    dropped = runs.drop_fastest + runs.drop_slowest
    between_evaluations = max(definition.timing.eval_every_samples, point.batch_size)
    deviation = max(statistics.stdev(samples), between_evaluations / 2)
    error = deviation * math.sqrt(1 / (len(samples) - dropped) + 1 / (runs.required - dropped))
    mean = _olympic_mean(samples, definition)
    return Expected(point.batch_size, mean, mean - one_sided_quantile(len(samples) - 1) * error)


def _olympic_mean(samples: Sequence[float], definition: Definition) -> float:
    return olympic_mean(samples, definition.runs.drop_fastest, definition.runs.drop_slowest)
