"""T4: recognise a clock that counts in another unit than milliseconds."""

from cepheid.compliance.finding import Finding, breach
from cepheid.compliance.read.log.runlog import RunLog

UNITS = {1e-3: "seconds", 1e3: "microseconds", 1e6: "nanoseconds"}
"""Each unit by how many of it pass in a millisecond."""

TOLERANCE = 0.01
SPAN_MS_MIN = 1_000.0
NOW_MS = 1e11, 1e14  # of time_ms: the years 1973 to 5138


def find_wrong_unit(run: RunLog) -> Finding | None:
    """Return a finding if one of the clocks counts in another unit, or None."""
    events = [event for event in run.events if event.monotonic_ms is not None]
    if len(events) < 2:
        return None
    first, last = events[0], events[-1]
    assert first.monotonic_ms is not None
    assert last.monotonic_ms is not None
    wall, clock = last.time_ms - first.time_ms, last.monotonic_ms - first.monotonic_ms
    if min(wall, clock) <= 0 or max(wall, clock) < SPAN_MS_MIN:
        return None
    lowest, highest = NOW_MS
    if lowest <= first.time_ms < highest:
        name, ratio, value = "metadata.monotonic_ms", clock / wall, last.monotonic_ms
        advice = "in Python time.monotonic() * 1000"
    else:
        name, ratio, value = "time_ms", wall / clock, last.time_ms
        advice = "in Python int(time.time() * 1000)"
    for factor, unit in UNITS.items():
        if abs(ratio / factor - 1) < TOLERANCE:
            return breach(
                run,
                first,
                "T4.unit",
                clock=name,
                unit=unit,
                value=value,
                factor=factor,
                advice=advice,
            )
    return None
