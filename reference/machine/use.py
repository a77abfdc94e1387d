"""How much of a machine a run had for itself: the load before it, and whose time passed in it.

The shares are of the time of all processors that this process may use. Where the system tells
nothing of them, as in some containers, there is nothing to say.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil


@dataclass(frozen=True)
class Reading:
    """Seconds that ``processors`` have counted; ``own`` are those of this process tree."""

    processors: int
    total: float
    idle: float
    stolen: float
    own: float


def read_load() -> float | None:
    """Return the mean number of processes that wanted to run in the last minute, if it is known."""
    with suppress(AttributeError, OSError):
        return round(os.getloadavg()[0], 2)
    return None


def measure_load(seconds: float = 2.0) -> float:
    """Return how many processors were busy, on average, in the ``seconds`` that begin now.

    What this process did a minute ago is not in it, as it is in the load of the system.
    """
    share = psutil.cpu_times_percent(seconds)
    busy = (100 - share.idle - getattr(share, "iowait", 0)) / 100
    return round(busy * (psutil.cpu_count() or 1), 2)


def read() -> Reading | None:
    """Read the clocks of the processors that this process may use; None where there are none."""
    try:
        times = psutil.cpu_times(percpu=True)
        allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(times))
        mine = [times[number] for number in allowed]
        own = _sum_own_seconds()
    except (IndexError, OSError, RuntimeError, psutil.Error):
        return None
    return Reading(
        len(mine),
        sum(map(_sum_seconds, mine)),
        sum(each.idle + getattr(each, "iowait", 0) for each in mine),
        sum(getattr(each, "steal", 0) for each in mine),
        own,
    )


def describe(load_before: float | None, start: Reading, stop: Reading) -> Mapping[str, float]:
    """Return the value of ``machine_use`` for the time between two readings; {} for none."""
    passed = stop.total - start.total
    if passed <= 0:
        return {}
    shares = {
        "idle_share": stop.idle - start.idle,
        "stolen_share": stop.stolen - start.stolen,
        "own_share": stop.own - start.own,
    }
    return {
        **({} if load_before is None else {"load_before": load_before}),
        "processors": stop.processors,
        **{name: round(min(max(part / passed, 0.0), 1.0), 4) for name, part in shares.items()},
    }


def _sum_seconds(times: Any) -> float:
    """Return all seconds of a processor; the time of guests is part of that of users."""
    guests = getattr(times, "guest", 0) + getattr(times, "guest_nice", 0)
    return float(sum(times) - guests)


def _sum_own_seconds() -> float:
    """Return the processor time of this process and all that it has started, in seconds."""
    this = psutil.Process()
    total = 0.0
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total
