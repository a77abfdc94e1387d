"""T4: the two clocks of a log: their units, their steps, and that both were read."""

import datetime
import math
import time
from collections.abc import Iterator, Sequence
from operator import sub

from cepheid.compliance.checks.log.events import find_whole_definition
from cepheid.compliance.checks.registry import Needs, Place, rule
from cepheid.compliance.checks.time.pace import check_pace
from cepheid.compliance.finding import Finding, breach, format_value
from cepheid.compliance.read.log.records import Event
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules import rounds
from cepheid.rules.events import CLOCK_METADATA

UNITS = {1e-3: "seconds", 1e3: "microseconds", 1e6: "nanoseconds"}
"""Each unit by how many of it pass in a millisecond."""

UNIT_TOLERANCE = 0.01
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
        if abs(ratio / factor - 1) < UNIT_TOLERANCE:
            return breach(
                run, first, "T4.unit", clock=name, unit=unit, value=value, factor=factor,
                advice=advice,
            )  # fmt: skip
    return None


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
        run, readings[0][2], "T4.one_clock", case="coarse" if is_coarse else "",
        spread_ms=spread_ms, times=times,
    )  # fmt: skip


def measure_spread_ms(readings: Sequence[tuple[float, float]]) -> float:
    """Return how far the difference of two clocks departs from a straight line over time."""
    first_wall, first_clock = readings[0]
    times = [wall - first_wall for wall, _ in readings]
    ahead = [wall - first_wall - (clock - first_clock) for wall, clock in readings]
    mean_time, mean_ahead = sum(times) / len(times), sum(ahead) / len(ahead)
    variance = sum((time - mean_time) ** 2 for time in times)
    both = list(zip(times, ahead, strict=True))
    covariance = sum((t - mean_time) * (a - mean_ahead) for t, a in both)
    slope = covariance / variance if variance else 0.0
    rest = [a - slope * t for t, a in both]
    return max(rest) - min(rest)


CLOCK_TOLERANCE_MS = 100.0
CLOCK_TOLERANCE_SHARE = 1e-3


@rule("T4", Needs.RECORDS)
def check_clock(run: RunLog, place: Place) -> Iterator[Finding]:
    """Check that no clock steps back, that both advance alike, and that events explain the time.

    This is rule T4.
    """
    if not rounds.load(place.round).log.monotonic_clock:
        yield from _check_single_clock(run)
        return
    broken_lines = {problem.line for problem in run.problems}  # T1's
    without = [e for e in run.events if e.line not in broken_lines and _lacks_clock(e)]
    if without:
        yield breach(
            run, without[0], "T4.no_monotonic_ms", records=len(without), of=len(run.events),
            value=format_metadata(without[0], CLOCK_METADATA),
        )  # fmt: skip
    wrong_unit = find_wrong_unit(run)
    if wrong_unit:
        yield wrong_unit
        return
    yield from _check_date(run)
    disagreements = list(_check_clocks(run))
    yield from disagreements
    if disagreements:
        return
    yield from check_two_clocks(run)
    if find_whole_definition(run, place):
        yield from check_pace(run)


FIRST_DATE_MS = 1_514_764_800_000.0  # 2018: no result of any suite of ours is older
DAY_MS = 86_400_000.0


def _check_date(run: RunLog) -> Iterator[Finding]:
    """Warn of a run that is dated before the suite, or after today."""
    for event in (run.events[0], run.events[-1]):
        if FIRST_DATE_MS <= event.time_ms <= time.time() * 1000 + DAY_MS:
            continue
        days = min(event.time_ms / DAY_MS, _LAST_DAY)
        date = datetime.date(1970, 1, 1) + datetime.timedelta(days=days)
        yield breach(run, event, "T4.date", date=date.isoformat())
        return


_LAST_DAY = 2_900_000.0  # in the year 9909; no date is later than 9999


def _check_clocks(run: RunLog) -> Iterator[Finding]:
    """Report where a clock steps back, and where the two clocks disagree."""
    before: Event | None = None
    drift = _Drift()
    for event in run.events:
        back = _describe_step_back(before, event) if before is not None else ""
        before = event
        if back:
            yield _report_step_back(run, event, back)
            drift = _Drift()  # begin anew, so that one step gives one finding
            continue
        clock_ms = event.monotonic_ms
        if clock_ms is None:
            continue
        apart_ms = drift.apart_ms(event.time_ms, clock_ms)
        if apart_ms is not None:
            yield breach(
                run, event, "T4.clocks_apart", tolerance_ms=CLOCK_TOLERANCE_MS, apart_ms=apart_ms
            )
            drift = _Drift()
            drift.apart_ms(event.time_ms, clock_ms)


def _check_single_clock(run: RunLog) -> Iterator[Finding]:
    """Report all steps back of the only clock as one finding.

    There may be many where several ranks write to one log.
    """
    times_ms = [event.time_ms for event in run.events]
    if times_ms == sorted(times_ms):
        return
    apart_ms = list(map(sub, times_ms[1:], times_ms))
    back_ms = [milliseconds for milliseconds in apart_ms if milliseconds < 0]
    times = "" if len(back_ms) == 1 else f" {len(back_ms):,} times, at most"
    message = f"time_ms steps back{times} by {-min(back_ms):,.0f} ms"
    first = run.events[apart_ms.index(back_ms[0]) + 1]
    yield _report_step_back(run, first, message)


def _report_step_back(run: RunLog, event: Event, message: str) -> Finding:
    return breach(run, event, "T4.step_back", step=message)


def format_metadata(event: Event, name: str) -> str:
    """Format a field of an event's metadata, also one that is not there."""
    return format_value(event.metadata[name]) if name in event.metadata else "nothing"


def _lacks_clock(event: Event) -> bool:
    logged = event.metadata.get(CLOCK_METADATA)
    if isinstance(logged, float) and not math.isfinite(logged):
        return False  # T5 reports it
    clock_ms = event.monotonic_ms
    return clock_ms is None or clock_ms < 0


def _describe_step_back(before: Event, event: Event) -> str:
    if event.time_ms < before.time_ms:
        return f"time_ms steps back by {before.time_ms - event.time_ms:,.0f} ms"
    clock_ms, before_ms = event.monotonic_ms, before.monotonic_ms
    if clock_ms is not None and before_ms is not None:
        back_ms = before_ms - clock_ms
        if back_ms > 0:
            return f"metadata.monotonic_ms steps back by {back_ms:,.3f} ms"
    return ""


class _Drift:
    """The drift between the two clocks, of every record against all before it in one pass.

    With o = wall − monotonic, |o_j − o_i| <= tolerance + share · (m_j − m_i) for all i < j holds
    exactly when o − share · m never rises, and o + share · m never falls, by more than the
    tolerance against its lowest, or highest, value so far.
    """

    def __init__(self) -> None:
        self.lowest = math.inf
        self.highest = -math.inf

    def apart_ms(self, wall_ms: float, monotonic_ms: float) -> float | None:
        """Return the clocks' difference beyond the growing share; None within the tolerance."""
        offset = wall_ms - monotonic_ms
        falling = offset - CLOCK_TOLERANCE_SHARE * monotonic_ms
        rising = offset + CLOCK_TOLERANCE_SHARE * monotonic_ms
        self.lowest = min(self.lowest, falling)
        self.highest = max(self.highest, rising)
        apart = max(falling - self.lowest, self.highest - rising)
        return apart if apart > CLOCK_TOLERANCE_MS else None
