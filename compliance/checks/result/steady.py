"""T19: the runs of a result have one machine for themselves: their pace, their start, their order.

The limit is 1.4 times what the busiest of the recorded results shows (2.9 between the runs of one
result); ``tests/compliance/checks/result/test_steady.py`` compares them.
"""

import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise

from cepheid.compliance.checks.time.pace import list_intervals, measure_blocks
from cepheid.compliance.finding import Finding, breach, format_value
from cepheid.compliance.read.log.records import Event
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules.events import MACHINE_SHARES, is_number

RUNS_RATIO_MAX = 4.0
# Of the processors' time; without other work it was 0.003 of two processors, and 0.02 of sixteen.
OTHERS_SHARE_MAX = 0.1
BOOT_TOLERANCE_MS = 60_000.0  # a clock may be set between two runs
BOOT_TOLERANCE_SHARE = 1e-3  # and it may be slewed


def check_steadiness(runs: Sequence[RunLog]) -> Iterator[Finding]:
    """Warn of runs that one machine, with nothing else to do, would not have made like this."""
    yield from _check_use(runs)
    yield from _check_pace(runs)
    timed = sorted((run for run in runs if _find_boot_ms(run) is not None), key=_find_start_ms)
    for before, run in pairwise(timed):
        yield from _check_boot(before, run)
        yield from _check_initialisation(before, run)


def _check_use(runs: Sequence[RunLog]) -> Iterator[Finding]:
    """Warn of the run during which other work took most of the machine, where it took much."""
    busiest: tuple[float, RunLog, Event] | None = None
    for run in runs:
        event = run.first("machine_use")
        if event is None or not isinstance(event.value, dict):
            continue  # T2 reports another type
        logged = [event.value.get(name) for name in MACHINE_SHARES]
        shares = [share for share in logged if is_number(share) and 0 <= share <= 1]
        if len(shares) < len(logged):
            yield breach(run, event, "T19.machine_use", use=format_value(event.value))
            continue
        idle, stolen, own = shares
        # What other ranks compute is not in the own time of the first.
        others = 1 - idle - own if run.implementation.get("ranks") == 1 else stolen
        if others > OTHERS_SHARE_MAX and (busiest is None or others > busiest[0]):
            busiest = others, run, event
    if busiest:
        others, run, event = busiest
        use = format_value(event.value)
        yield breach(run, event, "T19.busy", others=others, most=OTHERS_SHARE_MAX, use=use)


def measure_pace_ms(run: RunLog) -> float | None:
    """Return the usual milliseconds of a sample in the blocks of a run."""
    paces = [pace for pace, _ in measure_blocks(list_intervals(run)) if pace > 0]
    return statistics.median(paces) if paces else None


def _check_pace(runs: Sequence[RunLog]) -> Iterator[Finding]:
    """Warn of the run that is furthest from the usual pace of all, where runs differ much."""
    measured = [(pace, run) for run in runs if (pace := measure_pace_ms(run))]
    if len(measured) < 2:
        return
    fastest, slowest = (choose(measured, key=lambda one: one[0]) for choose in (min, max))
    if slowest[0] <= RUNS_RATIO_MAX * fastest[0]:
        return
    usual = statistics.median(pace for pace, _ in measured)
    odd = fastest if usual / fastest[0] > slowest[0] / usual else slowest
    other = slowest if odd is fastest else fastest
    yield breach(
        odd[1], None, "T19.uneven", times=slowest[0] / fastest[0], most=RUNS_RATIO_MAX, ms=odd[0],
        other_ms=other[0], other=other[1].path.name,
    )  # fmt: skip


def _find_start_ms(run: RunLog) -> float:
    return run.events[0].time_ms


def _find_boot_ms(run: RunLog) -> float | None:
    """Return when the machine of a run was started, by the difference of its two clocks."""
    first = run.events[0] if run.events else None
    clock_ms = first.monotonic_ms if first else None
    return first.time_ms - clock_ms if first and clock_ms is not None else None


def _check_boot(before: RunLog, run: RunLog) -> Iterator[Finding]:
    """Warn of a run on a machine that was started before the run before it had ended elsewhere."""
    boot_ms, boot_before_ms = _find_boot_ms(run), _find_boot_ms(before)
    if boot_ms is None or boot_before_ms is None:
        return
    end_ms = before.events[-1].time_ms
    tolerance_ms = BOOT_TOLERANCE_MS + BOOT_TOLERANCE_SHARE * abs(_find_start_ms(run) - end_ms)
    slept_ms = max(0.0, _find_start_ms(run) - end_ms)  # at most: the monotonic clock then stands
    is_same = -tolerance_ms <= boot_ms - boot_before_ms <= slept_ms + tolerance_ms
    if not is_same and boot_ms < end_ms - tolerance_ms:
        hours = abs(boot_ms - boot_before_ms) / 3_600_000
        yield breach(run, run.events[0], "T19.other_boot", other=before.path.name, hours=hours)


def _check_initialisation(before: RunLog, run: RunLog) -> Iterator[Finding]:
    """Warn of a run whose initialisation began while the run before it was timed."""
    start, stop, begun = run.first("init_start"), before.first("run_stop"), run.first("run_start")
    if start is None or stop is None or begun is None or start.time_ms >= stop.time_ms:
        return
    if begun.time_ms >= stop.time_ms:  # else T19.overlap reports it
        seconds = (stop.time_ms - start.time_ms) / 1000
        yield breach(run, start, "T19.early_init", other=before.path.name, seconds=seconds)
