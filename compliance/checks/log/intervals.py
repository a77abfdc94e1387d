"""The intervals of the timed part of a run: blocks, generations and evaluations."""

from compliance.read.log.records import Event
from compliance.read.log.runlog import RunLog

Interval = tuple[Event, Event]

_KINDS = ("block", "generation", "eval")


def list_intervals(run: RunLog) -> list[Interval]:
    """Return the closed blocks, generations and evaluations, in the order of their lines."""
    opened: dict[str, Event] = {}
    closed = []
    for event in run.events:
        what, _, end = event.key.rpartition("_")
        if what in _KINDS and end == "start":
            opened[what] = event
        elif what in _KINDS and end == "stop" and what in opened:
            closed.append((opened.pop(what), event))
    return closed


def are_in_turn(run: RunLog) -> bool:
    """Return whether each interval is closed before the next one opens (T3)."""
    opened, has_stopped = "", False
    for event in run.events:
        what, _, end = event.key.rpartition("_")
        if what in _KINDS and end in ("start", "stop"):
            if has_stopped or opened != ("" if end == "start" else what):
                return False
            opened = what if end == "start" else ""
        elif event.key == "run_stop":
            has_stopped = True
            if opened and run.converged:
                return False
    return True


def measure_ms(start: Event, stop: Event) -> float:
    """Return the longer of the two clocks' readings in ms, negative where they step back."""
    wall = stop.time_ms - start.time_ms
    if start.monotonic_ms is None or stop.monotonic_ms is None:
        return wall
    return max(wall, stop.monotonic_ms - start.monotonic_ms)
