"""Measure which of several ways to compute is the fastest, and record the reason."""

import math
import time
from collections.abc import Callable, Mapping, Sequence

from cepheid.reference.machine.ranks import Ranks
from cepheid.reference.run.execution import Execution

ROUNDS, FEWEST_ROUNDS, ENOUGH_SECONDS = 5, 3, 2.0
# A candidate replaces the first one only if it is faster by this share: less is noise.
MARGIN = 0.05

Step = Callable[[Execution], str]
"""One training step on synthetic data, forward and backward, with the given settings.

It returns why the step could not be compiled, or an empty string."""


def pick_fastest(
    execution: Execution,
    setting: str,
    values: Sequence[str],
    step: Step,
    ranks: Ranks,
    clock: Callable[[], float] = time.perf_counter,
) -> Execution:
    """Return ``execution`` with the value of ``setting`` for which ``step`` is fastest.

    The candidates ``values`` take turns, so that other load on the machine affects them all, and
    the best time of each counts. The first rank decides for all ranks.
    """
    if len(values) == 1:
        return execution.with_setting(setting, values[0], "the only candidate")
    best = dict.fromkeys(values, math.inf)
    began = time.perf_counter()
    for turn in range(ROUNDS + 1):
        for value in values:
            ranks.barrier()
            started = clock()
            step(execution.with_setting(setting, value))
            ranks.barrier()
            if turn:  # the first turn warms up
                best[value] = min(best[value], clock() - started)
        if turn >= FEWEST_ROUNDS and ranks.broadcast(time.perf_counter() - began > ENOUGH_SECONDS):
            break
    value = _pick_value(best)
    times = ", ".join(f"{value} {seconds * 1000:.1f} ms" for value, seconds in best.items())
    chosen: Execution = ranks.broadcast(
        execution.with_setting(setting, value, f"fastest step: {times}")
    )
    return chosen


def _pick_value(best_seconds: Mapping[str, float]) -> str:
    """Return the first candidate unless the fastest one is faster by more than noise."""
    first = next(iter(best_seconds))
    quickest = min(best_seconds, key=lambda value: best_seconds[value])
    is_clear = best_seconds[quickest] < best_seconds[first] * (1 - MARGIN)
    return quickest if is_clear else first
