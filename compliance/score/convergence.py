"""The RCP test (rule T21): does a result need implausibly fewer samples than the reference?

Pure: it takes counts of samples, and returns a verdict and a factor. The factor is for the reader;
nothing multiplies a score by it.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from compliance.score.scores import olympic_mean
from rules.definition import Definition
from rules.rcp import Point, ReferencePoints

Verdict = Literal["pass", "fail", "missing point", "not measured"]

# Student's t, one-sided 95%, for 1, 2, … 30 degrees of freedom. Rule T21 prints the same table, and
# a check need not load scipy for it. With more degrees the last value is used, which is 0.05 above
# that of infinitely many.
STUDENT_95 = (
    6.3138, 2.9200, 2.3534, 2.1318, 2.0150, 1.9432, 1.8946, 1.8595, 1.8331, 1.8125,
    1.7959, 1.7823, 1.7709, 1.7613, 1.7531, 1.7459, 1.7396, 1.7341, 1.7291, 1.7247,
    1.7207, 1.7171, 1.7139, 1.7109, 1.7081, 1.7056, 1.7033, 1.7011, 1.6991, 1.6973,
)  # fmt: skip


@dataclass(frozen=True)
class Expected:
    """What the reference needs at a batch size, in samples.

    ``mean`` is the olympic mean of its runs, ``least`` the smallest plausible mean of a result.
    """

    batch_size: int
    mean: float
    least: float


@dataclass(frozen=True)
class Convergence:
    """How a result stands to the reference.

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


def judge(
    samples: Sequence[float],
    batch_size: int,
    points: ReferencePoints | None,
    definition: Definition,
) -> Convergence:
    """Compare the samples to target of a result's runs with the reference's.

    ``samples`` is infinite for a run that did not converge. Points of another version of the
    definition are not used. Raises ValueError where more runs did not converge than may be dropped.
    """
    mean = _olympic_mean(samples, definition)
    known = expected_at_points(points, definition) if points else ()
    if not known:
        return Convergence("not measured", batch_size, mean)
    expected = interpolated(known, batch_size)
    if expected is None:
        return Convergence("missing point", batch_size, mean)
    return Convergence("pass" if mean >= expected.least else "fail", batch_size, mean, expected)


def expected_at_points(points: ReferencePoints, definition: Definition) -> tuple[Expected, ...]:
    """What the reference needs at each batch size that can be used, the smallest first."""
    if not points.belongs_to(definition):
        return ()
    return tuple(_expected(point, definition) for point in points.points if point.is_usable)


def interpolated(known: Sequence[Expected], batch_size: int) -> Expected | None:
    """What the reference would need at any batch size.

    Linear between the measured ones, that of the smallest below it, None above the largest.
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


def _expected(point: Point, definition: Definition) -> Expected:
    """mean − t₀.₉₅(n − 1) · s · √(1/n_ref + 1/n_sub), as rule T21 says, and why."""
    samples, runs = point.samples, definition.runs
    dropped = runs.drop_fastest + runs.drop_slowest
    between_evaluations = max(definition.timing.eval_every_samples, point.batch_size)
    deviation = max(statistics.stdev(samples), between_evaluations / 2)
    error = deviation * math.sqrt(1 / (len(samples) - dropped) + 1 / (runs.required - dropped))
    mean = _olympic_mean(samples, definition)
    return Expected(point.batch_size, mean, mean - _student_95(len(samples) - 1) * error)


def _olympic_mean(samples: Sequence[float], definition: Definition) -> float:
    return olympic_mean(samples, definition.runs.drop_fastest, definition.runs.drop_slowest)


def _student_95(degrees: int) -> float:
    return STUDENT_95[min(degrees, len(STUDENT_95)) - 1]
