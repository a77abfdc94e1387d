"""T4: find a second clock that was computed from the first."""

from collections.abc import Iterator, Sequence

from cepheid.compliance.finding import Finding, breach
from cepheid.compliance.read.log.runlog import RunLog

UPTIME_YEARS_MAX = 20
UPTIME_MS_MAX = UPTIME_YEARS_MAX * 365.25 * 86_400_000
READINGS_MIN = 12  # different times; fewer may agree by chance
COARSE_READINGS_MIN = 20  # of clocks in whole milliseconds, which agree more often
SPREAD_MS_MIN = 0.25
GLANCED_AT = 48  # readings that mostly tell


def check_two_clocks(run: RunLog) -> Iterator[Finding]:
    """Check that ``monotonic_ms`` was not computed from ``time_ms``.

    ``time_ms`` counts whole milliseconds, and the other clock was started at any moment. So their
    difference varies by about one millisecond from record to record. It does not if one is the
    other, shifted or stretched.
    """
    if run.grows:
        return
    readings = [
        (event.time_ms, clock, event.line)
        for event in run.events
        if (clock := event.monotonic_ms) is not None
    ]
    if not readings:
        return
    latest = max(readings, key=lambda reading: reading[1])
    if latest[1] > UPTIME_MS_MAX:
        yield breach(
            run, latest[2], "T4.copied_clock", years=UPTIME_YEARS_MAX, milliseconds=latest[1]
        )
        return
    if measure_spread_ms([reading[:2] for reading in readings[:GLANCED_AT]]) >= SPREAD_MS_MIN:
        return  # so the spread of all of them is as large
    times = len({time_ms for time_ms, _, _ in readings})
    is_coarse = all(clock == int(clock) for _, clock, _ in readings)
    spread_ms = measure_spread_ms([(wall, clock) for wall, clock, _ in readings])
    if times < (COARSE_READINGS_MIN if is_coarse else READINGS_MIN) or spread_ms >= SPREAD_MS_MIN:
        return
    # Clocks in whole milliseconds may agree by chance.
    yield breach(
        run,
        readings[0][2],
        "T4.one_clock",
        case="coarse" if is_coarse else "",
        spread_ms=spread_ms,
        times=times,
    )


_HINT = (
    "read a clock that is never set, with its fraction of a millisecond, at the same moment as "
    "time_ms; in Python time.monotonic() * 1000"
)


def measure_spread_ms(readings: Sequence[tuple[float, float]]) -> float:
    """Return how far the difference of two clocks departs from a straight line over time."""
    first_wall, first_clock = readings[0]
    times = [wall - first_wall for wall, _ in readings]
    ahead = [wall - first_wall - (clock - first_clock) for wall, clock in readings]
    mean_time, mean_ahead = sum(times) / len(times), sum(ahead) / len(ahead)
    variance = sum((time - mean_time) ** 2 for time in times)
    slope = (
        sum((t - mean_time) * (a - mean_ahead) for t, a in zip(times, ahead, strict=True))
        / variance
        if variance
        else 0.0
    )
    rest = [a - slope * t for t, a in zip(times, ahead, strict=True)]
    return max(rest) - min(rest)
