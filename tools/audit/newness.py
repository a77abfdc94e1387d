"""Prove that a repeated run was made in the audit, and is not the logged one written again."""

import stat
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from cepheid.compliance.checks.result.traces import list_durations_ms
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules.errors import UserError
from cepheid.rules.events import is_number
from cepheid.tools.audit.comparison import Verdict

SLACK_S = 1.0  # a file system counts its times more coarsely than the clock
ALIKE_MS = 2.0  # two logs that round their times
SAME_MS = 0.01  # of a single duration, in which two honest runs may differ by less than the above
ALIKE_COUNT_MIN = 6  # for less, times of one factor are no evidence
# Blocks of a GPU differ by less than 1 ms from run to run, its evaluations by 4 ms and more. Of the
# pairs of runs that we recorded, no two were closer in both or, with as many durations, closer than
# a twelfth of how much the durations of one run vary.
ALIKE_SHARE = 0.05
ALIKE_SHARE_COUNT_MIN = 8


@dataclass(frozen=True)
class Span:
    """When an audit ran the code, in seconds since 1970."""

    began: float
    ended: float


def require_own_file(path: Path, output: Path) -> None:
    """Raise UserError for a log that is no regular file of its own within the output."""
    inside = path.relative_to(output)
    parts = [output / parent for parent in inside.parents if parent.name]
    if any(part.is_symlink() for part in parts):
        raise UserError(f"{path}: a link leads there; the repeated run must write the log itself")
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        raise UserError(f"{path}: not a regular file of its own; the repeated run must write one")


def judge_newness(logged: RunLog, again: RunLog, span: Span | None) -> Iterator[Verdict]:
    """Judge whether the repeated log is new; without a span, only whether it is the old one."""
    if span is not None:
        problem = _describe_time(again, span)
        yield Verdict("newness", not problem, problem or "all its times lie within this audit")
    if is_alike(list_durations_ms(logged), list_durations_ms(again)):
        found = "the durations are those of the log, as in a copy of it"
        yield Verdict("own durations", False, found)
    else:
        yield Verdict("own durations", True, "the durations are not those of the log")


def _describe_time(again: RunLog, span: Span) -> str:
    """Return what in the repeated log does not lie within the audit; "" for nothing."""
    found = again.path.stat()
    if min(found.st_mtime, found.st_ctime) < span.began - SLACK_S:
        return "the file is older than this audit"
    if not again.events:
        return "the log is empty"
    times = [event.time_ms / 1000 for event in again.events]
    for what, time in (("begins", min(times)), ("ends", max(times))):
        early, late = span.began - SLACK_S - time, time - span.ended - SLACK_S
        if early > 0 or late > 0:
            where = f"{early:,.0f} s before it began" if early > 0 else f"{late:,.0f} s after it"
            return f"the log {what} outside of this audit, {where}"
    clock = [event.metadata.get("monotonic_ms") for event in again.events]
    readings = [reading for reading in clock if is_number(reading)]
    seconds = (max(readings, default=0) - min(readings, default=0)) / 1000
    if seconds > span.ended - span.began + SLACK_S:
        return f"its clock advances by {seconds:,.0f} s, more than this audit took"
    return ""


def is_alike(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Return whether one log could be the other one with new times, perhaps with a little noise.

    The first durations, in which programs are compiled, are left out of both.
    """
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=False) if a > 0 and b > 0]
    if len(pairs) < ALIKE_COUNT_MIN:
        limit = ALIKE_MS if len(pairs) > 1 else SAME_MS
        return bool(pairs) and all(abs(a - b) < limit for a, b in pairs)
    apart, varies = [], []
    for kind in (pairs[0::2], pairs[1::2]):  # blocks and evaluations take turns
        # With few durations a little noise blurs the median, so equal times are tried, too.
        factors = 1.0, statistics.median(a / b for a, b in kind)
        usual = statistics.median(a for a, _ in kind)
        by_factor = ([abs(a - factor * b) for a, b in kind] for factor in factors)
        apart.append(min(by_factor, key=_find_third_quartile))
        varies += [abs(a - usual) for a, _ in kind]
    if all(_find_third_quartile(of_kind) < ALIKE_MS for of_kind in apart):
        return True
    worst, spread = _find_third_quartile([*chain(*apart)]), _find_third_quartile(varies)
    return len(pairs) >= ALIKE_SHARE_COUNT_MIN and worst < ALIKE_SHARE * spread


def _find_third_quartile(values: Sequence[float]) -> float:
    return sorted(values)[3 * len(values) // 4]
