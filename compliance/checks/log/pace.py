"""T4: check that the events of the timed part explain its time, as far as a log can show it.

Only an interval that takes no time at all is certainly wrong. A block that is much faster than all
others, or a long time between events, may have an honest reason, so these are warnings.
"""

from collections.abc import Iterator

from compliance.checks.registry import make_finding
from compliance.finding import Finding
from compliance.read.log.records import Event
from compliance.read.log.runlog import RunLog
from rules.events import is_integer

GAP_SECONDS_MIN = 10.0  # shorter gaps are a checkpoint or a barrier
BLOCKS_MIN = 4  # fewer blocks show no usual pace
PACE_RATIO_MAX = 3.0

_INTERVALS = ("block", "generation", "eval")

Interval = tuple[Event, Event]


def check_pace(run: RunLog) -> Iterator[Finding]:
    """Check for intervals without duration, blocks that are too fast, and unexplained gaps."""
    if not run.seconds or run.seconds < 0:
        return  # T7 reports it, or the run failed at once
    pairs = _list_intervals(run)
    instant = [(start, stop) for start, stop in pairs if _measure_ms(start, stop) == 0]
    for start, stop in instant[:1]:
        what = start.key.removesuffix("_start")
        times = f" (so do {len(instant) - 1:,} more intervals)" if len(instant) > 1 else ""
        yield make_finding(
            run.path,
            stop.line,
            "T4.no_time",
            f"the {what} that starts on line {start.line} took no time{times}",
            expected="a later time on either clock",
            got="the same time_ms and the same monotonic_ms",
            hint="write each record when it happens, with the clocks of that moment",
        )
    if not instant and not run.grows:
        yield from _check_fast_blocks(run, pairs)
        yield from _check_gaps(run, pairs)


def _list_intervals(run: RunLog) -> list[Interval]:
    """Return the closed blocks, generations and evaluations, in the order of their lines."""
    opened: dict[str, Event] = {}
    closed = []
    for event in run.events:
        what, _, end = event.key.rpartition("_")
        if what in _INTERVALS and end == "start":
            opened[what] = event
        elif what in _INTERVALS and end == "stop" and what in opened:
            closed.append((opened.pop(what), event))
    return closed


def _measure_ms(start: Event, stop: Event) -> float:
    """Return the longer of the two clocks' readings in ms, negative where they step back."""
    wall = stop.time_ms - start.time_ms
    if start.monotonic_ms is None or stop.monotonic_ms is None:
        return wall
    return max(wall, stop.monotonic_ms - start.monotonic_ms)


def _check_fast_blocks(run: RunLog, pairs: list[Interval]) -> Iterator[Finding]:
    """Report blocks that are much faster than all others, if they are a quarter at most."""
    paces = []
    for start, stop in pairs:
        first, last = start.metadata.get("samples_count"), stop.metadata.get("samples_count")
        if start.key == "block_start" and is_integer(first) and is_integer(last) and last > first:
            paces.append((_measure_ms(start, stop) / (last - first), stop.line))
    if len(paces) < BLOCKS_MIN:
        return
    paces.sort()
    for count in range(len(paces) // 4, 0, -1):
        fast, usual = paces[count - 1][0], paces[count][0]
        if fast > 0 and usual > PACE_RATIO_MAX * fast:
            yield make_finding(
                run.path,
                min(line for _, line in paces[:count]),
                "T4.fast_blocks",
                f"{count} of {len(paces)} blocks trained {usual / fast:.1f} times as fast as any "
                "other, or faster",
                expected=f"blocks within a factor of {PACE_RATIO_MAX:g} of the next slower one",
                got=f"{fast:.3g} ms a sample, elsewhere {usual:.3g} or more",
                hint="a clock that was paused looks like this; if the machine was busy in all "
                "other blocks, repeat the run on a quiet machine",
                severity="warning",
            )
            return


def _check_gaps(run: RunLog, pairs: list[Interval]) -> Iterator[Finding]:
    """Report the longest time between two intervals, if it is longer than every block.

    The time before the first block does not count, because data are read there.
    """
    stop = run.all("run_stop")[0]
    blocks = [_measure_ms(start, end) for start, end in pairs if start.key != "eval_start"]
    following = [start for start, _ in pairs[1:]]
    if run.converged:  # a failed run may have stopped within a block
        following.append(stop)
    ends = (end for _, end in pairs)
    gaps = [
        (_measure_ms(end, after), end, after) for end, after in zip(ends, following, strict=False)
    ]
    if not gaps:
        return
    longest_ms, end, after = max(gaps, key=lambda gap: gap[0])
    if longest_ms > max([GAP_SECONDS_MIN * 1000, *blocks]):
        yield make_finding(
            run.path,
            after.line,
            "T4.gap",
            f"{longest_ms / 1000:,.1f} seconds between {end.key} and {after.key} that no event "
            "explains",
            expected=f"{after.key} soon after {end.key} on line {end.line}",
            hint="log training and evaluation as blocks and evaluations; explain in the README "
            "what else takes so long while the clock runs",
            severity="warning",
        )
