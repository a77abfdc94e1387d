"""T4: the time of the timed part that lies in no block, generation or evaluation."""

from collections.abc import Iterator, Sequence

from cepheid.compliance.checks.time.intervals import Interval, measure_ms
from cepheid.compliance.finding import Finding, breach
from cepheid.compliance.read.log.runlog import RunLog

GAP_SECONDS_MIN = 10.0  # shorter gaps are a checkpoint or a barrier
OUTSIDE_SHARE_MAX = 0.3  # of the time from the first interval on
READING_SHARE_MAX = 0.5  # of the run, before the first interval
RECORD_MS = 10.0  # to write one, on a busy machine


def check_gaps(run: RunLog, pairs: Sequence[Interval]) -> Iterator[Finding]:
    """Check how much time lies outside of all intervals: in all, before the first, in one gap."""
    if not pairs:
        return
    unaccounted = list(_check_outside(run, pairs))
    yield from unaccounted
    yield from _check_reading(run, pairs)
    if not unaccounted:
        yield from _check_longest_gap(run, pairs)


def _check_outside(run: RunLog, pairs: Sequence[Interval]) -> Iterator[Finding]:
    """Report a run that spent more than three tenths of its time outside, once intervals began."""
    first, last = pairs[0][0], pairs[-1][1]
    # A run that failed may have stopped within a block.
    end = run.all("run_stop")[0] if run.converged else last
    whole_ms = measure_ms(first, end)
    outside_ms = whole_ms - sum(measure_ms(start, stop) for start, stop in pairs)
    if outside_ms > OUTSIDE_SHARE_MAX * whole_ms + RECORD_MS * (2 * len(pairs) + 1):
        yield breach(
            run,
            end,
            "T4.unaccounted",
            share=outside_ms / whole_ms,
            most=OUTSIDE_SHARE_MAX,
            key=first.key,
            line=first.line,
            outside_seconds=outside_ms / 1000,
            seconds=whole_ms / 1000,
        )


def _check_reading(run: RunLog, pairs: Sequence[Interval]) -> Iterator[Finding]:
    """Report a run that spent most of its time before the first interval."""
    start, first, stop = run.all("run_start")[0], pairs[0][0], run.all("run_stop")[0]
    before_ms, whole_ms = measure_ms(start, first), measure_ms(start, stop)
    if run.converged and before_ms > READING_SHARE_MAX * whole_ms + RECORD_MS * len(pairs):
        yield breach(
            run,
            first,
            "T4.late_start",
            interval=first.key.removesuffix("_start"),
            share=before_ms / whole_ms,
            before_seconds=before_ms / 1000,
            seconds=whole_ms / 1000,
        )


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
            run,
            after,
            "T4.gap",
            seconds=longest_ms / 1000,
            before=end.key,
            after=after.key,
            line=end.line,
        )
