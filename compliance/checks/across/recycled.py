"""T19 and T23 across all results: no run is another one under another name.

Every key of every run is looked up once, so the time grows with the number of logs.
"""

import os
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cepheid.compliance.checks.across.traces import CURVE, POWER, TIMES, WITHIN, RunTrace
from cepheid.compliance.finding import Finding, breach, escape
from cepheid.rules.rounds import Round

ALIKE_SHARE_MAX = 0.01  # of three quarters of the long durations
ALIKE_COUNT_MIN = 3
ALIKE_MS = 1.0
OWNERS_MAX = 4  # of one key: the first ones that had it


@dataclass(frozen=True)
class TracedResult:
    """The traces of the runs of a result, and what was already found about them."""

    traces: Sequence[RunTrace]
    findings: Sequence[Finding]


def find_recycled(results: Sequence[TracedResult], judged_in: Round) -> list[list[Finding]]:
    """Return for each result the findings about runs that agree with a run judged before them.

    Of two runs that agree, the one that says that it started later is named.
    """
    found: list[list[Finding]] = [[] for _ in results]
    everywhere = [
        (trace, number) for number, result in enumerate(results) for trace in result.traces
    ]
    everywhere.sort(key=lambda one: (one[0].start_ms, one[0].path.parts))
    reported = {
        finding.path
        for result in results
        for finding in result.findings
        if finding.rule == "T23" or "copied" in finding.code
    }
    for kind in (WITHIN, TIMES, CURVE, POWER):
        owners: dict[int, tuple[int, ...]] = {}
        for here, (trace, number) in enumerate(everywhere):
            keys: Iterable[int] = trace.keys[kind]
            if kind == WITHIN:
                keys = [hash((number, key)) for key in keys]
            shared = Counter(owner for key in keys for owner in owners.get(key, ()))
            alone = (here,)  # one object for all keys of the run: most keys have one owner
            for key in keys:
                known = owners.setdefault(key, alone)
                if known is not alone and len(known) < OWNERS_MAX:
                    owners[key] = (*known, here)
            if not shared:
                continue
            other, result_of_other = everywhere[shared.most_common(1)[0][0]]
            logs = (trace.path, other.path, trace.power, other.power)
            if not reported.isdisjoint(logs) or _is_same_file(trace.path, other.path):
                continue
            finding = _report(kind, trace, other, number == result_of_other)
            if finding.rule in judged_in.rules:
                level = judged_in.rules[finding.rule].severity
                severity = level if finding.is_error else finding.severity
                found[number].append(replace(finding, severity=severity))
            reported.add(trace.path)
    return found


def _is_same_file(path: Path, other: Path) -> bool:
    """Return whether a folder was given twice."""
    return os.path.abspath(path) == os.path.abspath(other)


def _report(kind: int, trace: RunTrace, other: RunTrace, is_same_result: bool) -> Finding:
    if kind == POWER:
        return breach(trace.power or trace, 3, "T23.recycled", other=escape(str(other.power)))
    is_repeat = (
        kind == CURVE
        and not is_same_result
        and trace.seed is not None
        and trace.curve == other.curve  # rounding that differs between machines grows in training
        and (trace.seed, trace.code_digest) == (other.seed, other.code_digest)
    )
    if is_repeat and not are_times_alike(trace.durations_ms, other.durations_ms):
        return breach(
            trace, trace, "T19.same_seed", other=escape(str(other.path)), seed=str(trace.seed)
        )
    what = "times" if kind == TIMES else "quality or losses"
    return breach(trace, trace, "T19.recycled", what=what, other=escape(str(other.path)))


def are_times_alike(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Return whether durations differ by one factor only, as if one log were made of the other."""
    count = min(len(ours), len(theirs))
    longest = max(ours[:count], default=0.0)
    pairs = [
        (a, b)
        for a, b in zip(ours[:count], theirs[:count], strict=True)
        if a > longest / 2 and b > 0
    ]
    if len(pairs) < ALIKE_COUNT_MIN:
        return all(abs(a - b) < ALIKE_MS for a, b in pairs)
    factor = statistics.median(a / b for a, b in pairs)
    apart = sorted(abs(a / b / factor - 1) for a, b in pairs)
    return apart[3 * len(apart) // 4] < ALIKE_SHARE_MAX
