"""T4: check that the events of the timed part explain its time, as far as a log can show it.

An interval that takes no time, or a tenth of what is usual in its run, is wrong. So is a run that
spends much of its time outside of all intervals. Lesser differences may have an honest reason, so
these are warnings.
"""

import statistics
from collections.abc import Iterator, Sequence

from cepheid.compliance.finding import Finding, breach
from cepheid.compliance.read.log.records import Event
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules.events import is_integer

Interval = tuple[Event, Event]

_ENDS = {f"{kind}_start": f"{kind}_stop" for kind in ("block", "generation", "eval")}
_STOPS = {*_ENDS.values()}


def list_intervals(run: RunLog) -> list[Interval]:
    """Return the closed blocks, generations and evaluations, in the order of their lines."""
    return list(run.list_intervals(_ENDS))


def are_in_turn(run: RunLog) -> bool:
    """Return whether each interval is closed before the next one opens (T3)."""
    awaited, has_stopped = "", False
    for event in run.events:
        if event.key in _ENDS:
            if awaited or has_stopped:
                return False
            awaited = _ENDS[event.key]
        elif event.key in _STOPS:
            if event.key != awaited or has_stopped:
                return False
            awaited = ""
        elif event.key == "run_stop":
            has_stopped = True
            if awaited and run.converged:
                return False
    return True


def measure_ms(start: Event, stop: Event) -> float:
    """Return the longer of the two clocks' readings in ms, negative where they step back."""
    wall, begin, end = stop.time_ms - start.time_ms, start.monotonic_ms, stop.monotonic_ms
    return wall if begin is None or end is None else max(wall, end - begin)


GAP_SECONDS_MIN = 10.0  # shorter gaps are a checkpoint or a barrier
OUTSIDE_SHARE_MAX = 0.3  # of the time from the first interval on
READING_SHARE_MAX = 0.5  # of the run, before the first interval
RECORD_MS = 10.0  # to write one, on a busy machine


def _check_outside(run: RunLog, pairs: Sequence[Interval]) -> Iterator[Finding]:
    """Report a run that spent more than three tenths of its time outside, once intervals began."""
    first, last = pairs[0][0], pairs[-1][1]
    # A run that failed may have stopped within a block.
    end = run.all("run_stop")[0] if run.converged else last
    whole_ms = measure_ms(first, end)
    outside_ms = whole_ms - sum(measure_ms(start, stop) for start, stop in pairs)
    if outside_ms > OUTSIDE_SHARE_MAX * whole_ms + RECORD_MS * (2 * len(pairs) + 1):
        yield breach(
            run, end, "T4.unaccounted", share=outside_ms / whole_ms, most=OUTSIDE_SHARE_MAX,
            key=first.key, line=first.line, outside_seconds=outside_ms / 1000,
            seconds=whole_ms / 1000,
        )  # fmt: skip


def _check_reading(run: RunLog, pairs: Sequence[Interval]) -> Iterator[Finding]:
    """Report a run that spent most of its time before the first interval."""
    start, first, stop = run.all("run_start")[0], pairs[0][0], run.all("run_stop")[0]
    before_ms, whole_ms = measure_ms(start, first), measure_ms(start, stop)
    if run.converged and before_ms > READING_SHARE_MAX * whole_ms + RECORD_MS * len(pairs):
        yield breach(
            run, first, "T4.late_start", interval=first.key.removesuffix("_start"),
            share=before_ms / whole_ms, before_seconds=before_ms / 1000, seconds=whole_ms / 1000,
        )  # fmt: skip


def _check_longest_gap(run: RunLog, pairs: Sequence[Interval]) -> Iterator[Finding]:
    """Report the longest time between two intervals, if it is longer than every block."""
    stop = run.all("run_stop")[0]
    blocks = [measure_ms(start, end) for start, end in pairs if start.key != "eval_start"]
    following = [start for start, _ in pairs[1:]]
    if run.converged:  # a failed run may have stopped within a block
        following.append(stop)
    ends = (end for _, end in pairs)
    gaps = [
        (measure_ms(end, after), end, after) for end, after in zip(ends, following, strict=False)
    ]
    if not gaps:
        return
    longest_ms, end, after = max(gaps, key=lambda gap: gap[0])
    if longest_ms > max([GAP_SECONDS_MIN * 1000, *blocks]):
        yield breach(
            run, after, "T4.gap", seconds=longest_ms / 1000, before=end.key, after=after.key,
            line=end.line,
        )  # fmt: skip


BLOCKS_MIN = 4  # fewer blocks show no usual pace
PACE_RATIO_MAX = 3.0
USUAL_RATIO_MAX = 10.0  # to the median of the run
USUAL_COUNT_MIN = 3
USUAL_MS_MIN = 20.0  # shorter intervals measure the machine's other work

Timed = tuple[float, Event]  # milliseconds, for blocks of a sample, and the record at the end


def check_pace(run: RunLog) -> Iterator[Finding]:
    """Check for intervals without duration, blocks that are too fast, and unexplained gaps."""
    if not run.seconds or run.seconds < 0:
        return  # T7 reports it, or the run failed at once
    pairs = list_intervals(run)
    instant = _find_instant(run, pairs)
    for start, stop in instant[:1]:
        what = start.key.removesuffix("_start")
        times = f" (so do {len(instant) - 1:,} more intervals)" if len(instant) > 1 else ""
        yield breach(run, stop, "T4.no_time", what=what, line=start.line, times=times)
    if instant or run.grows or not are_in_turn(run):
        return
    blocks = measure_blocks(pairs)
    evaluations = [
        (measure_ms(start, stop), stop) for start, stop in pairs if start.key == "eval_start"
    ]
    unusual = list(_check_usual_pace(run, blocks, "block"))
    unusual += _check_usual_pace(run, evaluations, "evaluation")
    unusual = unusual or list(_check_fast_blocks(run, blocks))
    unusual += _check_slow_evaluations(run, evaluations, pairs)
    yield from unusual or _check_evenness(run, blocks, evaluations)
    if pairs:
        unaccounted = list(_check_outside(run, pairs))
        yield from unaccounted
        yield from _check_reading(run, pairs)
        if not unaccounted:
            yield from _check_longest_gap(run, pairs)


def _find_instant(run: RunLog, pairs: Sequence[Interval]) -> list[Interval]:
    """Return the intervals that took no time.

    If both clocks count whole milliseconds, an evaluation may be shorter than one.
    """
    init = [] if run.grows else [(run.all("init_start")[0], run.all("init_stop")[0])]
    instant = [pair for pair in (*init, *pairs) if measure_ms(*pair) == 0]
    clocks = (event.monotonic_ms for event in run.events)
    if instant and all(clock is None or clock == int(clock) for clock in clocks):
        return [pair for pair in instant if pair[0].key != "eval_start"]
    return instant


def measure_blocks(pairs: Sequence[Interval]) -> list[Timed]:
    """Return the milliseconds of a sample in each block."""
    paces = []
    for start, stop in pairs:
        first, last = start.metadata.get("samples_count"), stop.metadata.get("samples_count")
        if start.key == "block_start" and is_integer(first) and is_integer(last) and last > first:
            paces.append((measure_ms(start, stop) / (last - first), stop))
    return paces


def _check_usual_pace(run: RunLog, timed: Sequence[Timed], what: str) -> Iterator[Finding]:
    """Report a block or an evaluation that is ten times as fast as is usual in its run."""
    if len(timed) < USUAL_COUNT_MIN:
        return
    usual = statistics.median(ms for ms, _ in timed)
    ms, stop = min(timed, key=lambda one: one[0])
    is_measurable = usual >= USUAL_MS_MIN if what == "evaluation" else usual > 0
    if is_measurable and USUAL_RATIO_MAX * ms < usual:
        yield breach(
            run, stop, "T4.too_fast", case="" if ms > 0 else "no_time", what=what,
            times=usual / ms if ms > 0 else 0, usual=usual, ms=ms,
            each=" a sample" if what == "block" else "",
        )  # fmt: skip


def _check_fast_blocks(run: RunLog, blocks: Sequence[Timed]) -> Iterator[Finding]:
    """Report blocks that are much faster than all others, if they are a quarter at most."""
    paces = sorted((pace, stop.line) for pace, stop in blocks)
    if len(paces) < BLOCKS_MIN:
        return
    for count in range(len(paces) // 4, 0, -1):
        fast, usual = paces[count - 1][0], paces[count][0]
        if fast > 0 and usual > PACE_RATIO_MAX * fast:
            yield breach(
                run, min((line for _, line in paces[:count])), "T4.fast_blocks", count=count,
                blocks=len(paces), times=usual / fast, most=PACE_RATIO_MAX, fast=fast, usual=usual,
            )  # fmt: skip
            return


BLOCKS_RATIO_MAX, EVALUATIONS_RATIO_MAX = 6.0, 20.0  # twice those of the busiest recorded run
EVALUATION_SHARE_MIN = 1 / 50  # of the time of a training sample, for a sample that is evaluated


def _check_evenness(
    run: RunLog, blocks: Sequence[Timed], evaluations: Sequence[Timed]
) -> Iterator[Finding]:
    """Warn where equal work took very different times; the first of its kind may take longer."""
    of_kinds = (
        ("block", blocks[1:], BLOCKS_RATIO_MAX),
        ("evaluation", evaluations[1:], EVALUATIONS_RATIO_MAX),
    )
    for what, timed, most in of_kinds:
        least = min((ms for ms, _ in timed), default=0.0)
        ms, stop = max(timed, key=lambda one: one[0], default=(0.0, None))
        if stop and least > 0 and ms > most * least and (what == "block" or ms > USUAL_MS_MIN):
            yield breach(
                run, stop, "T4.uneven", what=what, times=ms / least, most=most, ms=ms, least=least
            )
            return
    samples = run.value("eval_samples")
    if not (blocks and evaluations and is_integer(samples) and samples > 0):
        return
    trained = statistics.median(ms for ms, _ in blocks)
    evaluated = statistics.median(ms for ms, _ in evaluations) / samples
    if evaluated < EVALUATION_SHARE_MIN * trained:
        yield breach(
            run, evaluations[0][1], "T4.light_evaluation",
            share=trained / evaluated if evaluated else 0, most=1 / EVALUATION_SHARE_MIN,
            trained=trained, evaluated=evaluated,
        )  # fmt: skip


def _check_slow_evaluations(
    run: RunLog, timed: Sequence[Timed], pairs: Sequence[Interval]
) -> Iterator[Finding]:
    """Report an evaluation, other than the first, in which more than an evaluation happened."""
    if len(timed) < USUAL_COUNT_MIN:
        return
    usual = statistics.median(ms for ms, _ in timed)
    ms, stop = max(timed[1:], key=lambda one: one[0])
    blocks = [measure_ms(start, end) for start, end in pairs if start.key == "block_start"]
    if ms > max(USUAL_RATIO_MAX * usual, statistics.median(blocks)):
        yield breach(
            run, stop, "T4.slow_evaluation", times=ms / max(usual, 0.001), usual=usual, ms=ms
        )
