"""What other work leaves of the processors of this machine."""

import os
import time

import psutil

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
