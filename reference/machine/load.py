"""What other work leaves of the processors of this machine."""

import os
import time

import psutil

WATCHED_SECONDS = 0.3  # Linux counts the time of processors in hundredths of a second
ALMOST_IDLE = 0.25  # of a core: what a desktop does beside the run takes none away


def measure_idle_processors(seconds: float = WATCHED_SECONDS) -> float:
    """Return how many of the processors that this process may use are idle, while it waits.

    Two processors may share a core (``count_idle_cores``).
    """
    before = psutil.cpu_times(percpu=True)
    time.sleep(seconds)
    after = psutil.cpu_times(percpu=True)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(after))
    idle = 0.0
    for number in allowed:
        if number >= min(len(before), len(after)):
            continue
        one, other = before[number], after[number]
        waited = other.idle - one.idle + getattr(other, "iowait", 0) - getattr(one, "iowait", 0)
        passed = sum(other) - sum(one)
        idle += min(max(waited / passed, 0.0), 1.0) if passed > 0 else 1.0
    return idle


def count_idle_cores(idle_processors: float, sharers: int = 1) -> int:
    """Return the whole cores that are idle, for each of those that share them; at least one.

    A thread on each of them does not wait for other work.
    """
    per_core = (psutil.cpu_count() or 1) / (psutil.cpu_count(logical=False) or 1)
    return max(1, int(idle_processors / max(per_core, 1) / sharers + ALMOST_IDLE))
