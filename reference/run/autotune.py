"""Measuring which of some ways to compute is the fastest, and keeping the reason. No framework."""

import math
import time
from collections.abc import Callable, Mapping, Sequence

from reference.run.config import Execution
from reference.run.ranks import Ranks

ROUNDS, FEWEST_ROUNDS, ENOUGH_SECONDS = 5, 3, 2.0
# A candidate must be that much faster than the first one: less is noise.
MARGIN = 0.05

Step = Callable[[Execution], str]
"""One training step on synthetic data, forwards and backwards, the way it is told. Returns why it
could not be compiled, empty if it could or was not to be."""


def pick_fastest(
    execution: Execution,
    setting: str,
    values: Sequence[str],
    step: Step,
    ranks: Ranks,
    clock: Callable[[], float] = time.perf_counter,
) -> Execution:
    """``execution`` with the value with which ``step`` is fastest.

    Candidates take turns, so that whatever else the machine does meets them all, and the best time
    of each counts.
    """
    if len(values) == 1:
        return execution.having(setting, values[0], "the only candidate")
    best = dict.fromkeys(values, math.inf)
    began = time.perf_counter()
    for turn in range(ROUNDS + 1):
        for value in values:
            ranks.barrier()
            started = clock()
            step(execution.having(setting, value))
            ranks.barrier()
            if turn:  # the first one warms up
                best[value] = min(best[value], clock() - started)
        if turn >= FEWEST_ROUNDS and ranks.broadcast(time.perf_counter() - began > ENOUGH_SECONDS):
            break
    chosen = _chosen(best)
    times = ", ".join(f"{value} {seconds * 1000:.1f} ms" for value, seconds in best.items())
    told: Execution = ranks.broadcast(execution.having(setting, chosen, f"fastest step: {times}"))
    return told


def _chosen(best_seconds: Mapping[str, float]) -> str:
    """The fastest candidate; the first one unless another is faster by more than noise."""
    first = next(iter(best_seconds))
    quickest = min(best_seconds, key=lambda value: best_seconds[value])
    is_clear = best_seconds[quickest] < best_seconds[first] * (1 - MARGIN)
    return quickest if is_clear else first
