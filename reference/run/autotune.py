"""Measure which way to compute is the fastest, and which processors other work leaves."""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil

from cepheid.reference.machine.ranks import Ranks
from cepheid.reference.run.execution import Execution
from cepheid.rules.host import usable_processors

WATCHED_SECONDS = 0.3  # Linux counts the time of processors in hundredths of a second
OTHER_WORK = "other work runs here"  # how the reason for a number of threads begins
ALMOST_IDLE = 0.25  # of a thread: what a desktop does beside the run takes none away


def measure_idle_processors(seconds: float = WATCHED_SECONDS) -> float:
    """Return how many of the processors that this process may use are idle, while it waits.

    A processor of which the system tells nothing counts as idle: some containers hide or renumber
    them.
    """
    try:
        before = psutil.cpu_times(percpu=True)
        time.sleep(seconds)
        after = psutil.cpu_times(percpu=True)
    except (OSError, RuntimeError):  # no /proc/stat
        return float(usable_processors())
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(after))
    idle = 0.0
    for number in allowed:
        if number >= min(len(before), len(after)):
            idle += 1.0
            continue
        one, other = before[number], after[number]
        waited = other.idle - one.idle + getattr(other, "iowait", 0) - getattr(one, "iowait", 0)
        passed = sum(other) - sum(one)
        idle += min(max(waited / passed, 0.0), 1.0) if passed > 0 else 1.0
    return idle


def count_idle_threads(usual: int, idle_share: float, sharers: int = 1) -> int:
    """Return how many threads do not wait for other work; at least one.

    ``usual`` is their number on an idle machine: one for each core, or for each processor.
    ``sharers`` are the ranks that may use the same processors.
    """
    return max(1, int(usual * idle_share / sharers + ALMOST_IDLE))


def explain_few_threads(execution: Mapping[str, Any]) -> str:
    """Return what to tell of a run that leaves processors to other work; else an empty string.

    ``execution`` are the settings that the run chose, with their reasons.
    """
    reason = str(execution.get("because", {}).get("threads", ""))
    if not reason.startswith(OTHER_WORK):
        return ""
    threads = f"{execution['threads']} thread" + "s" * (execution["threads"] != "1")
    return (
        f"{reason}, so all runs of this result compute on {threads}; fix: end the other work and "
        "begin a new result"
    )


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
    return ranks.broadcast(execution.with_setting(setting, value, f"fastest step: {times}"))


def _pick_value(best_seconds: Mapping[str, float]) -> str:
    """Return the first candidate unless the fastest one is faster by more than noise."""
    first = next(iter(best_seconds))
    quickest = min(best_seconds, key=lambda value: best_seconds[value])
    is_clear = best_seconds[quickest] < best_seconds[first] * (1 - MARGIN)
    return quickest if is_clear else first
