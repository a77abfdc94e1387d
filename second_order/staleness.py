"""When a factor is due for a refresh: its interval adapts to how much it changes.

After Osawa et al. 2020 (arXiv:2002.06015), whose rule compares a refreshed matrix with its two
predecessors by the relative Frobenius distance.
"""

import math
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Interval:
    """The steps between two refreshes of one factor, and its history."""

    steps: int = 1
    previous_steps: int = 1
    due: int = 0  # the step at which it is refreshed next
    refreshes: int = 0
    # From the version before, at the last refresh; not known, or not asked for, it is infinite.
    distance: float = field(default=math.inf, compare=False)

    def record_refresh(self, step: int, steps: int, distance: float = math.inf) -> "Interval":
        """Return the interval after a refresh at ``step``; the next one follows in ``steps``."""
        return Interval(steps, self.steps, step + steps, self.refreshes + 1, distance)

    def record_failure(self, step: int) -> "Interval":
        """Return the interval after a failure at ``step``; the next step tries again."""
        return replace(self, due=step + 1)


def compute_steps_to_next(
    interval: Interval, one_before: float, two_before: float, tolerance: float
) -> int:
    """Return the interval until the next refresh, in steps.

    The last refresh moved the factor by these relative distances from the two before it. With Δ₋₁
    and Δ₋₂ the last two intervals, the result is max(1, ⌊Δ₋₁ / 2⌋) if the matrix differs from the
    previous one by ``tolerance`` or more, Δ₋₁ if it differs only from the one before that, and
    Δ₋₁ + Δ₋₂ if it is similar to both. An unknown distance is infinite.
    """
    if not one_before < tolerance:
        return max(1, interval.steps // 2)
    if not two_before < tolerance:
        return interval.steps
    return interval.steps + interval.previous_steps
