"""The intervals of the timed part of a run: blocks, generations and evaluations."""

from cepheid.compliance.read.log.records import Event
from cepheid.compliance.read.log.runlog import RunLog

Interval = tuple[Event, Event]

_OPENING = {"block_start": "block", "generation_start": "generation", "eval_start": "eval"}
_CLOSING = {"block_stop": "block", "generation_stop": "generation", "eval_stop": "eval"}


def list_intervals(run: RunLog) -> list[Interval]:
    """Return the closed blocks, generations and evaluations, in the order of their lines."""
    opened: dict[str, Event] = {}
    closed = []
    for event in run.events:
        if event.key in _OPENING:
            opened[_OPENING[event.key]] = event
        elif event.key in _CLOSING and _CLOSING[event.key] in opened:
            closed.append((opened.pop(_CLOSING[event.key]), event))
    return closed


def are_in_turn(run: RunLog) -> bool:
    """Return whether each interval is closed before the next one opens (T3)."""
    opened, has_stopped = "", False
    for event in run.events:
        if event.key in _OPENING:
            if opened or has_stopped:
                return False
            opened = _OPENING[event.key]
        elif event.key in _CLOSING:
            if opened != _CLOSING[event.key] or has_stopped:
                return False
            opened = ""
        elif event.key == "run_stop":
            has_stopped = True
            if opened and run.converged:
                return False
    return True


def measure_ms(start: Event, stop: Event) -> float:
    """Return the longer of the two clocks' readings in ms, negative where they step back."""
    wall, begin, end = stop.time_ms - start.time_ms, start.monotonic_ms, stop.monotonic_ms
    return wall if begin is None or end is None else max(wall, end - begin)
