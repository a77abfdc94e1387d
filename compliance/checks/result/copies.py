"""T19 and T23: no run is a copy of another one, in its result and across all results."""

import math
import os
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path

from cepheid.compliance.checks.alike.mixed import find_mixtures
from cepheid.compliance.checks.alike.near import find_close, find_repeated, load_scale
from cepheid.compliance.checks.registry import Needs, Place, rule
from cepheid.compliance.checks.result.energy import tell_of_period
from cepheid.compliance.checks.result.readings import find_copies
from cepheid.compliance.checks.result.steady import check_steadiness
from cepheid.compliance.checks.result.traces import CURVE, POWER, TIMES, WITHIN, RunTrace
from cepheid.compliance.finding import Finding, breach, encode_canonically, escape, format_value
from cepheid.compliance.read.decisions import Decisions, Dispute
from cepheid.compliance.read.log.runlog import QualityPoint, RunLog
from cepheid.compliance.read.logs import ResultLogs
from cepheid.rules.definition import Definition
from cepheid.rules.events import is_number
from cepheid.rules.rounds import Round, RoundBenchmark
from cepheid.rules.systems import find_organisation, rank_team

COPIED_LOSSES_MIN = 3  # with more than four digits; shorter ones may agree by chance
COPIED_INTERVALS_MIN = 5
COPIED_INTERVAL_MS_MIN = 100.0  # shorter ones may agree by chance


@rule("T19", Needs.RESULT)
def check_copies(
    result: ResultLogs, definition: Definition | RoundBenchmark, place: Place
) -> Iterator[Finding]:
    """Check that no two runs share quality, losses or times, and that none overlap (T19)."""
    if isinstance(definition, RoundBenchmark):  # runs of MLPerf may share a system
        yield from _check_quality_of_history(result.runs)
        return
    # T2 reports two runs in one file.
    runs = [run for run in result.runs if len(run.all("run_start")) < 2]
    copied = list(_check_quality(runs, definition))
    copied += _check_traces(runs, {finding.path for finding in copied})
    yield from copied
    reported = {finding.path for finding in copied}
    others = [run for run in runs if run.path not in reported]
    yield from _check_overlap(others)
    yield from check_steadiness(others)


def _check_quality(runs: Sequence[RunLog], definition: Definition) -> Iterator[Finding]:
    """Report runs that share an evaluation, or all evaluations, with an earlier run."""
    seen: dict[object, tuple[RunLog, QualityPoint]] = {}
    for run in runs:
        course = [point for point in run.quality_curve if point.metrics]
        traces = {
            _list_values(point): point for point in course if _tells_runs_apart(point, definition)
        }
        if course:
            traces[tuple(map(_list_values, course))] = course[0]
        same = next((trace for trace in traces if trace in seen), None)
        if same is not None:
            other, there = seen[same]
            place = f"{other.path.name}, line {there.line}"
            metrics = format_value(dict(traces[same].metrics))
            yield _report_copied_quality(run, traces[same].line, place, metrics)
        for trace, point in traces.items():
            seen.setdefault(trace, (run, point))


def _check_quality_of_history(runs: Sequence[RunLog]) -> Iterator[Finding]:
    """Report runs that agree at all of their evaluations; a single one may agree by chance."""
    seen: dict[object, RunLog] = {}
    for run in runs:
        course = run.evaluations
        if len(course) < 2:
            continue
        trace = encode_canonically([[event.key, event.value] for event in course])
        other = seen.setdefault(trace, run)
        if other is not run:
            place = f"{other.path.name}, at all evaluations"
            last = f"{format_value(course[-1].value)} at the last of {len(course):,}"
            yield _report_copied_quality(run, course[0].line, place, last)


def _report_copied_quality(run: RunLog, line: int, place: str, got: str) -> Finding:
    return breach(run, line, "T19.copied_quality", other=place, got=got)


def _check_traces(runs: Sequence[RunLog], reported: set[Path]) -> Iterator[Finding]:
    """Report runs that share all losses, or all times between events, with an earlier run."""
    seen: dict[object, RunLog] = {}
    for run in runs:
        generated = tuple(encode_canonically(each.value) for each in run.all("generation_times"))
        traces = {
            ("loss", _list_losses(run)): ("T19.copied_losses", "block_stop"),
            ("time", _list_intervals_ms(run)): ("T19.copied_intervals", "run_start"),
            ("generation", generated): ("T19.copied_times", "generation_times"),
        }
        known = {trace: described for trace, described in traces.items() if trace[1]}
        same = next((trace for trace in known if trace in seen), None)
        if same is not None and run.path not in reported:
            code, key = known[same]
            yield breach(run, run.all(key)[0], code, other=seen[same].path.name)
        for trace in known:
            seen.setdefault(trace, run)


def _list_losses(run: RunLog) -> tuple[float, ...]:
    """Return the losses of all blocks, or nothing if too few have enough digits to compare."""
    logged = [event.metadata.get("train_loss") for event in run.all("block_stop")]
    losses = tuple(float(loss) for loss in logged if is_number(loss) and abs(loss) < 1e300)
    telling = {loss for loss in losses if float(f"{loss:.4g}") != loss}
    return losses if len(telling) >= COPIED_LOSSES_MIN else ()


def _list_intervals_ms(run: RunLog) -> tuple[float, ...]:
    """Return the times between the events of the timed part, or nothing if too few are long."""
    start = run.first("run_start")
    timed = [event.time_ms for event in run.events if start and event.line >= start.line]
    between = tuple(after - before for before, after in pairwise(timed))
    is_telling = sum(ms > COPIED_INTERVAL_MS_MIN for ms in between) >= COPIED_INTERVALS_MIN
    return between if is_telling else ()


def _list_values(point: QualityPoint) -> tuple[object, ...]:
    return tuple(sorted(point.metrics.items()))


def _tells_runs_apart(point: QualityPoint, definition: Definition) -> bool:
    """Return False if every metric is a share of counted samples, which may agree by chance."""
    counts = [value * definition.evaluation_samples for value in point.metrics.values()]
    return any(abs(count - round(count)) > 1e-6 for count in counts if math.isfinite(count))


def _check_overlap(runs: Sequence[RunLog]) -> Iterator[Finding]:
    """Report runs that started before an earlier run on the same system had stopped."""
    last_of: dict[str | None, RunLog] = {}
    timed = [run for run in runs if run.seconds is not None and run.seconds >= 0]
    for run in sorted(
        timed, key=lambda run: (_read_time(run, "run_start"), _read_time(run, "run_stop"))
    ):
        system = run.text("submission_platform")
        before = last_of.get(system)
        if before is not None and _read_time(run, "run_start") < _read_time(before, "run_stop"):
            overlap_s = (_read_time(before, "run_stop") - _read_time(run, "run_start")) / 1000
            yield breach(
                run, run.all("run_start")[0], "T19.overlap", other=before.path.name,
                line=before.all("run_stop")[0].line, seconds=overlap_s,
            )  # fmt: skip
        if before is None or _read_time(run, "run_stop") > _read_time(before, "run_stop"):
            last_of[system] = run


def _read_time(run: RunLog, key: str) -> float:
    return run.all(key)[0].time_ms


ALIKE_SHARE_MAX = 0.01  # of three quarters of the long durations
ALIKE_COUNT_MIN = 3
ALIKE_MS = 1.0
OWNERS_MAX = 4  # of one key: the first ones that had it


@dataclass(frozen=True)
class TracedResult:
    """The traces of the runs of a result, whose they are, and what was already found about them.

    ``decisions`` are those of the organisers.
    """

    traces: Sequence[RunTrace]
    findings: Sequence[Finding]
    owner: Path
    decisions: Decisions | None = None

    @cached_property
    def organisation(self) -> Path:
        """The folder of the submitter's first team (S2)."""
        return self.owner.with_name(find_organisation(self.owner))


@dataclass(frozen=True)
class Side:
    """One of two runs that agree, and the result that it belongs to."""

    trace: RunTrace
    result: TracedResult

    def is_team_beside(self, other: "Side") -> bool:
        """Return True for another team of one submitter."""
        ours, theirs = self.result, other.result
        return ours.owner != theirs.owner and ours.organisation == theirs.organisation


def find_recycled(
    results: Sequence[TracedResult], judged_in: Round, stood: Callable[[Path], bool]
) -> list[list[Finding]]:
    """Return for each result the findings about runs that agree with another one.

    ``stood`` says of a file whether it stood on the base branch as it is; see ``_settle``.
    """
    of_results: list[list[Finding]] = [[] for _ in results]
    everywhere = [(trace, n) for n, result in enumerate(results) for trace in result.traces]
    everywhere.sort(key=lambda one: (not stood(one[0].path), one[0].start_ms, one[0].path.parts))
    found = (finding for result in results for finding in result.findings)
    reported = {one.path for one in found if "copied" in one.code}

    def report(kind: int, here: int, there: int) -> None:
        (trace, number), (other, result_of_other) = everywhere[here], everywhere[there]
        logs = {trace.path, trace.power}
        if number == result_of_other and here != there:
            logs |= {other.path, other.power}
        is_twice = here != there and _is_same_file(trace.path, other.path)
        if not reported.isdisjoint(logs) or is_twice:
            return
        sides = (Side(trace, results[number]), Side(other, results[result_of_other]))
        for finding, side in _settle(kind, *sides, stood):
            if finding.rule in judged_in.rules:
                level = judged_in.rules[finding.rule].severity
                severity = level if finding.is_error else finding.severity
                at = number if side is sides[0] else result_of_other
                of_results[at].append(replace(finding, severity=severity))
        reported.add(trace.path)

    for kind in (WITHIN, TIMES, CURVE, POWER):
        owners: dict[int, tuple[int, ...]] = {}
        repeated = find_repeated(key for one in everywhere for key in _list_keys(*one, kind))
        for here, one in enumerate(everywhere):
            keys = [key for key in _list_keys(*one, kind) if key in repeated]
            shared = Counter(owner for key in keys for owner in owners.get(key, ()))
            alone = (here,)  # one object for all keys of the run: most keys have one owner
            for key in keys:
                known = owners.setdefault(key, alone)
                if known is not alone and len(known) < OWNERS_MAX:
                    owners[key] = (*known, here)
            if not shared:
                continue
            report(kind, here, shared.most_common(1)[0][0])
    for here, there in find_copies([trace.readings for trace, _ in everywhere]):
        report(POWER, here, there)
    if "T19" in judged_in.rules:
        for finding, number in _find_near(results, everywhere, reported, stood):
            of_results[number].append(finding)
    return of_results


def _list_keys(trace: RunTrace, number: int, kind: int) -> Iterable[int]:
    keys: Iterable[int] = trace.keys[kind]
    return [hash((number, key)) for key in keys] if kind == WITHIN else keys


def _find_near(
    results: Sequence[TracedResult],
    everywhere: Sequence[tuple[RunTrace, int]],
    reported: Collection[Path],
    stood: Callable[[Path], bool],
) -> Iterator[tuple[Finding, int]]:
    """Yield warnings about runs whose quality moves as that of another one, for each benchmark."""
    groups: defaultdict[tuple[str, str], list[tuple[RunTrace, int]]] = defaultdict(list)
    for trace, number in everywhere:
        if trace.steps and trace.path not in reported:
            groups[trace.benchmark].append((trace, number))
    for benchmark, there in groups.items():
        scale, told = load_scale(*benchmark), set[Path]()
        courses = [trace.steps for trace, _ in there if trace.steps]
        numbers = [number for _, number in there]
        copied = find_close(courses, numbers, scale) if scale else ()
        for close in chain(copied, find_mixtures(courses, scale) if scale else ()):
            (trace, number), others = there[close.run], [there[other] for other in close.others]
            mine = Side(trace, results[number])
            sides = [Side(other, results[of]) for other, of in others]
            if trace.path in told or any(_is_excused(mine, side) for side in sides):
                continue
            told.add(trace.path)
            yield _report_near(trace, [side.trace for side in sides]), number
            for side, (_, of) in zip(sides, others, strict=True):
                is_rival = side.result.owner != mine.result.owner
                if is_rival and not stood(side.trace.path) and side.trace.path not in told:
                    told.add(side.trace.path)
                    yield _report_near(side.trace, [trace]), of


def _report_near(trace: RunTrace, others: Sequence[RunTrace]) -> Finding:
    names = " and ".join(escape(str(other.path)) for other in others)
    return breach(trace, trace, "T19.near", other=names)


def _is_excused(one: Side, two: Side) -> bool:
    """Return True for two runs that may be alike: of one seed, or as the organisers decided."""
    same_seed = one.trace.seed is not None and one.trace.seed == two.trace.seed
    decided = _find_decision(one, two)
    is_same = same_seed or _is_same_file(one.trace.path, two.trace.path)
    return is_same or bool(decided and decided.lets_both_stand)


def _settle(
    kind: int, later: Side, earlier: Side, stood: Callable[[Path], bool]
) -> Iterator[tuple[Finding, Side]]:
    """Report two runs that agree, against the one that is the copy, or as a dispute against both.

    What the organisers decided holds. Of two runs of one submitter, the one that says that it
    started later is the copy. Of two folders, the one whose log stood on the base branch is
    innocent. Times in a log prove nothing there, since a copier writes them: of two teams of one
    submitter, the further one is then the copy, and two submitters are in dispute.
    """
    finding = _report(kind, later, earlier)
    decided = _find_decision(later, earlier)
    if decided and decided.lets_both_stand:
        return
    copy, original = later, earlier
    if decided:
        decisions = later.result.decisions
        if decisions and decisions.concerns(decided.path, later.trace.path):
            copy, original = earlier, later
    elif later.result.owner != earlier.result.owner and finding.is_error:
        stands = [stood(side.trace.path) for side in (later, earlier)]
        if stands[0] == stands[1] and not later.is_team_beside(earlier):
            for side, rival in ((later, earlier), (earlier, later)):
                yield _report(kind, side, rival, is_disputed=True), side
            return
        is_first = [rank_team(side.result.owner) for side in (later, earlier)]
        if stands[0] > stands[1] or (stands[0] == stands[1] and is_first[0] < is_first[1]):
            copy, original = earlier, later
    yield _report(kind, copy, original), copy


def _find_decision(one: Side, two: Side) -> Dispute | None:
    """Find what the organisers decided about two runs, in either order."""
    decisions = one.result.decisions
    if decisions is None:
        return None
    for decided in decisions.list_all(Dispute):
        for first, second in ((one, two), (two, one)):
            names_first = decisions.concerns(decided.path, first.trace.path)
            if names_first and decisions.concerns(decided.other, second.trace.path):
                return decided
    return None


def _is_same_file(path: Path, other: Path) -> bool:
    """Return whether a folder was given twice."""
    return os.path.abspath(path) == os.path.abspath(other)


def _report(kind: int, side: Side, rival: Side, is_disputed: bool = False) -> Finding:
    trace, other = side.trace, rival.trace
    if kind == POWER and trace is other:
        return tell_of_period(trace.power or trace)
    case = "team" if side.is_team_beside(rival) else ""
    if kind == POWER:
        here, there = trace.power or trace, escape(str(other.power))
        if is_disputed:
            return breach(here, 3, "T23.disputed", other=there)
        return breach(here, 3, "T23.recycled", case=case, other=there)
    is_repeat = (
        kind == CURVE
        and side.result is not rival.result
        and trace.seed is not None
        and trace.curve == other.curve  # rounding that differs between machines grows in training
        and (trace.seed, trace.code_digest) == (other.seed, other.code_digest)
    )
    path = escape(str(other.path))
    if is_repeat and not are_times_alike(trace.durations_ms, other.durations_ms):
        return breach(trace, trace, "T19.same_seed", other=path, seed=str(trace.seed))
    what = "times" if kind == TIMES else "quality or losses"
    if is_disputed:
        return breach(trace, trace, "T19.disputed", what=what, other=path)
    return breach(trace, trace, "T19.recycled", case=case, what=what, other=path)


def are_times_alike(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Return whether durations differ by one factor only, as if one log were made of the other."""
    count = min(len(ours), len(theirs))
    longest = max(ours[:count], default=0.0)
    both = zip(ours[:count], theirs[:count], strict=True)
    pairs = [(a, b) for a, b in both if a > longest / 2 and b > 0]
    if len(pairs) < ALIKE_COUNT_MIN:
        return all(abs(a - b) < ALIKE_MS for a, b in pairs)
    factor = statistics.median(a / b for a, b in pairs)
    apart = sorted(abs(a / b / factor - 1) for a, b in pairs)
    return apart[3 * len(apart) // 4] < ALIKE_SHARE_MAX
