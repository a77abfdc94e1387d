"""T4: the time of the timed part that lies in no block, generation or evaluation."""

from collections.abc import Iterator, Sequence

from cepheid.compliance.checks.registry import make_finding
from cepheid.compliance.checks.time.intervals import Interval, measure_ms
from cepheid.compliance.finding import Finding
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
        yield make_finding(
            run.path,
            end.line,
            "T4.unaccounted",
            f"{outside_ms / whole_ms:.0%} of the time lies in no block, generation or evaluation",
            expected=f"at most {OUTSIDE_SHARE_MAX:.0%} from {first.key} on line {first.line} on",
            got=f"{outside_ms / 1000:,.1f} of {whole_ms / 1000:,.1f} seconds",
            hint="log all training and evaluation as blocks and evaluations; nothing is trained "
            "between them",
        )


def _check_reading(run: RunLog, pairs: Sequence[Interval]) -> Iterator[Finding]:
    """Report a run that spent most of its time before the first interval."""
    start, first, stop = run.all("run_start")[0], pairs[0][0], run.all("run_stop")[0]
    before_ms, whole_ms = measure_ms(start, first), measure_ms(start, stop)
    if run.converged and before_ms > READING_SHARE_MAX * whole_ms + RECORD_MS * len(pairs):
        yield make_finding(
            run.path,
            first.line,
            "T4.late_start",
            f"the first {first.key.removesuffix('_start')} begins after "
            f"{before_ms / whole_ms:.0%} of the time of the run",
            expected="at most half of the time before it, to read data",
            got=f"{before_ms / 1000:,.1f} of {whole_ms / 1000:,.1f} seconds",
            hint="nothing is trained before the first block; explain in the README what takes so "
            "long",
            severity="warning",
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
