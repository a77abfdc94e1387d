"""T15 to T19: what the logs of one result must be to each other."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from compliance.checks.log.form import end_of_phase
from compliance.checks.log.identity import division_of, has_digest_of
from compliance.checks.log.timing import BATCH_SIZE
from compliance.checks.registry import Needs, Place, make_finding, rule
from compliance.finding import Finding, format_value
from compliance.read.logs import ResultLogs
from compliance.read.records import Event
from compliance.read.runlog import QualityPoint, RunLog
from rules import rounds
from rules.definition import Definition
from rules.digests import derive_seed
from rules.events import STATUS_ABORTED, Phase, is_integer, is_number
from rules.rounds import RoundBenchmark, Severity


@rule("T15", Needs.RESULT)
def seeds(
    result: ResultLogs, definition: Definition | RoundBenchmark, place: Place
) -> Iterator[Finding]:
    """Seeds differ, one called derived is the derived one, and no completed run is set aside."""
    if isinstance(definition, RoundBenchmark):
        yield from _seeds_of_history(result, place)
        return
    by_seed: dict[int, RunLog] = {}
    for run in result.runs:
        event = run.first("seed")
        if event is None or not is_integer(event.value):
            continue
        not_derived = _not_derived(run, definition)
        if not_derived:
            yield not_derived
        elif event.value in by_seed:
            yield _repeated_seed(run, event, by_seed[event.value])
        by_seed.setdefault(event.value, run)
    yield from _seed_sources(result.runs)
    yield from _given_seeds(result.runs)
    for run in result.interrupted:
        yield from _set_aside(run, definition)


def _seeds_of_history(result: ResultLogs, place: Place) -> Iterator[Finding]:
    """Logs of MLPerf may hold several seeds: no two runs have one in common, of the same source."""
    owners: dict[object, RunLog] = {}
    for run in result.runs:
        for event in run.all("seed"):
            source = _canonical([event.metadata.get("file"), event.metadata.get("lineno")])
            owner = owners.setdefault((_canonical(event.value), source), run)
            if owner is not run:
                yield _repeated_seed(run, event, owner)
                break
        asked = rounds.load(place.round).log.seed_required
        if asked and place.in_result and not run.all("seed") and _is_closed(run, place):
            yield make_finding(
                run.path,
                None,
                "T15.missing",
                "the run logs no seed",
                expected="a seed of its own for each run",
                hint="log each seed with mllog",
            )


def _repeated_seed(run: RunLog, event: Event, owner: RunLog) -> Finding:
    return make_finding(
        run.path,
        event.line,
        "T15.repeated",
        f"seed {format_value(event.value)} is also that of {owner.path.name}",
        expected="a seed of its own for each run",
        hint="run again with another seed; by default `cepheid run` derives one per run",
    )


def _is_closed(run: RunLog, place: Place) -> bool:
    return division_of(run, place) == "closed"


def _seed_sources(runs: Sequence[RunLog]) -> Iterator[Finding]:
    """Runs whose seed another line of code logged than in most runs."""
    sources = {
        run.path: f"{event.metadata.get('file')}:{event.metadata.get('lineno')}"
        for run in runs
        if (event := run.first("seed")) is not None
    }
    if len(set(sources.values())) < 2:
        return
    usual, _ = Counter(sources.values()).most_common(1)[0]
    for run in runs:
        if sources.get(run.path, usual) != usual:
            yield make_finding(
                run.path,
                run.all("seed")[0].line,
                "T15.source",
                "the seed was logged by another line of code than in the other runs",
                expected=f"{format_value(usual)}, as metadata.file and lineno",
                got=format_value(sources[run.path]),
                hint="make all runs of a result with the same program, and leave its logs as "
                "they are",
            )


def _given_seeds(runs: Sequence[RunLog]) -> Iterator[Finding]:
    logged = [(run, event) for run in runs if (event := run.first("seed")) is not None]
    given = [(run, event) for run, event in logged if event.metadata.get("origin") == "given"]
    if given:
        run, event = given[0]
        count = f" (in {len(given)} of {len(runs)} runs)" if len(runs) > 1 else ""
        yield make_finding(
            run.path,
            event.line,
            "T15.given",
            f"seeds were given, not derived{count}",
            severity="note",
            hint="a reader cannot tell whether they were chosen; without --seed `cepheid run` "
            "derives them",
        )


def _set_aside(run: RunLog, definition: Definition) -> Iterator[Finding]:
    """A log called interrupted that tells of a run which came to its end."""
    stop = run.first("run_stop")
    if stop is None:
        return
    evaluated = run.quality_curve[-1].samples if run.quality_curve else 0
    budget = definition.timing.max_samples if definition.kind == "train" else 1
    is_spent = run.status == STATUS_ABORTED and evaluated >= budget
    if run.converged or is_spent:
        yield make_finding(
            run.path,
            stop.line,
            "T15.set_aside",
            "a completed run was set aside",
            expected="only logs of runs that were interrupted",
            got=f"status {format_value(run.status)} after {evaluated:,} samples",
            hint="runs are not selected: give the log its own name result_<k>.txt again",
        )


def _not_derived(run: RunLog, definition: Definition) -> Finding | None:
    """A breach where the log says ``origin: derived`` and the seed is another one."""
    event = run.all("seed")[0]
    system, code_digest = run.text("submission_platform"), run.text("code_digest")
    if event.metadata.get("origin") != "derived" or run.index is None:
        return None
    if system is None or code_digest is None or not has_digest_of(run, definition):
        return None  # T2's and T14's
    expected = derive_seed(definition.digest, system, code_digest, run.index)
    if event.value == expected:
        return None
    of_run = [
        index
        for index in range(definition.runs.required)
        if event.value == derive_seed(definition.digest, system, code_digest, index)
    ]
    return make_finding(
        run.path,
        event.line,
        "T15.not_derived",
        "the seed is called derived, but it is not the derived one of this run",
        expected=f"{expected}, which follows from definition, system, code and run {run.index}",
        got=f"{event.value}" + (f", the seed of run {of_run[0]}" if of_run else ""),
        hint="do not rename logs; where the seed was chosen, log it with metadata.origin given",
    )


@rule("T16", Needs.RESULT)
def number_of_runs(result: ResultLogs, definition: Definition, place: Place) -> Iterator[Finding]:
    """As many logs as the definition requires, numbered from 0."""
    if not place.in_result:
        return
    runs, folder, required = result.runs, result.path, definition.runs.required
    indices = sorted(run.index for run in runs if run.index is not None)
    gaps = sorted(set(range(len(indices))) - set(indices))
    if gaps:
        yield make_finding(
            folder,
            None,
            "T16.missing",
            f"result_{gaps[0]}.txt is missing",
            expected=f"logs numbered from result_0.txt to result_{len(indices) - 1}.txt",
            got=f"result_{indices[-1]}.txt as the last one",
            hint="runs are not selected: put every completed run into the result",
        )
    if len(runs) < required:
        yield make_finding(
            folder,
            None,
            "T16.too_few",
            f"provisional: {len(runs)} of {required} runs",
            expected=f"{required} run logs for a score",
            got=str(len(runs)),
            hint="the same `cepheid run` command makes the missing runs",
            severity="error" if place.in_submission else "note",
        )
    elif len(runs) > required:
        yield make_finding(
            folder,
            None,
            "T16.too_many",
            f"{len(runs)} runs where the result holds exactly {required}",
            expected=f"result_0.txt to result_{required - 1}.txt",
            got=str(len(runs)),
            hint=f"a result is the first {required} runs that were started; "
            "move later ones to another folder, and do not choose by their times",
        )


@rule("T17", Needs.RESULT)
def not_converged(
    result: ResultLogs, definition: Definition | RoundBenchmark, place: Place
) -> Iterator[Finding]:
    """At most `runs.drop.slowest` runs ended aborted; by itself an aborted run is an error.

    In a round of MLPerf a log that does not say success tells of such a run, also one cut short.
    """
    is_history = isinstance(definition, RoundBenchmark)
    aborted = [
        run
        for run in result.runs
        if run.status == STATUS_ABORTED or (is_history and not run.converged)
    ]
    allowed = definition.runs.drop_slowest
    severity: Severity = "note" if place.in_result else "error"
    for run in aborted:
        stop = run.first("run_stop")
        reason = stop.metadata.get("reason") if stop else None
        because = f": {format_value(reason)}" if isinstance(reason, str) and reason else ""
        because = because if stop else ": the log ends without run_stop"
        yield make_finding(
            run.path,
            stop.line if stop else run.events[-1].line if run.events else None,
            "T17.not_converged",
            f"the run did not converge{because}",
            expected="" if place.in_result else "a run that reaches the targets",
            hint="see what the reason names; the run counts as the slowest run, "
            f"and a result may hold {allowed} such run{'' if allowed == 1 else 's'}",
            severity=severity,
        )
    if place.in_result and len(aborted) > allowed:
        yield make_finding(
            result.path,
            None,
            "T17.too_many",
            f"{len(aborted)} of {len(result.runs)} runs did not converge",
            expected=f"at most {allowed}",
            got=str(len(aborted)),
            hint="with more of them the result has no score; "
            "tune the hyperparameters, then make all runs again",
        )


_SHARED = (
    "submission_org",
    "submission_platform",
    "submission_benchmark",
    "submission_scale",
    "submission_division",
    "code_digest",
    "data_digest",
    "implementation",
)


@rule("T18", Needs.RESULT)
def sameness(result: ResultLogs, definition: Definition, place: Place) -> Iterator[Finding]:
    """Runs of a result differ in seed and time alone. The odd ones out are named."""
    closed = division_of(result.runs[0], place) == "closed"
    for key in _SHARED:
        if not (key.startswith("submission_") and place.system is not None):  # T14's
            yield from _differing(result.runs, key)
    for name, allowed in definition.hyperparameters.items():
        if not (closed and allowed.fixed):  # T12 compares those with the definition
            may_lack = not closed and name != BATCH_SIZE  # else T12 or T13 misses it
            yield from _differing(result.runs, name, may_lack=may_lack)


def _differing(runs: Sequence[RunLog], key: str, may_lack: bool = False) -> Iterator[Finding]:
    """The runs that log another value than most; with ``may_lack``, none is a value too."""
    texts = {}
    for run in runs:
        event = run.first(key)
        if event is not None or (may_lack and run.is_complete):
            texts[run.path] = _canonical(event.value) if event else ""
    if len(set(texts.values())) < 2:
        return
    usual, _ = Counter(texts.values()).most_common(1)[0]
    reference = next(run for run in runs if texts.get(run.path) == usual)
    for run in runs:
        if texts.get(run.path, usual) != usual:
            event = run.first(key)
            yield make_finding(
                run.path,
                event.line if event else end_of_phase(run, Phase.INIT),
                "T18.differs",
                f"{key} differs from that of {reference.path.name}",
                expected=_logged(reference, key),
                got=_logged(run, key),
                hint="make all runs of a result with the same code, data, software and values",
            )


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _logged(run: RunLog, key: str) -> str:
    event = run.first(key)
    return format_value(event.value) if event else f"no {key}"


@rule("T19", Needs.RESULT)
def copies(
    result: ResultLogs, definition: Definition | RoundBenchmark, place: Place
) -> Iterator[Finding]:
    """No two runs have quality, losses or times in common, and none ran while another did."""
    if isinstance(definition, RoundBenchmark):  # whose runs may share a system at the same time
        yield from _copied_in_history(result.runs)
        return
    runs = [run for run in result.runs if len(run.all("run_start")) < 2]  # two in a file: T2
    copied = list(_copied(runs, definition))
    copied += _retimed(runs, {finding.path for finding in copied})
    yield from copied
    told = {finding.path for finding in copied}
    yield from _at_the_same_time([run for run in runs if run.path not in told])


def _copied(runs: Sequence[RunLog], definition: Definition) -> Iterator[Finding]:
    """Runs with an evaluation of an earlier run, or with all of its evaluations."""
    seen: dict[object, tuple[RunLog, QualityPoint]] = {}
    for run in runs:
        course = [point for point in run.quality_curve if point.metrics]
        traces = {_values(point): point for point in course if _tells_runs_apart(point, definition)}
        if course:
            traces[tuple(map(_values, course))] = course[0]
        same = next((trace for trace in traces if trace in seen), None)
        if same is not None:
            other, there = seen[same]
            place = f"{other.path.name}, line {there.line}"
            metrics = format_value(dict(traces[same].metrics))
            yield _copied_quality(run, traces[same].line, place, metrics)
        for trace, point in traces.items():
            seen.setdefault(trace, (run, point))


def _copied_in_history(runs: Sequence[RunLog]) -> Iterator[Finding]:
    """Runs that agree at all of their evaluations, two or more: one alone may agree by chance."""
    seen: dict[object, RunLog] = {}
    for run in runs:
        course = run.evaluations
        if len(course) < 2:
            continue
        trace = _canonical([[event.key, event.value] for event in course])
        other = seen.setdefault(trace, run)
        if other is not run:
            place = f"{other.path.name}, at all evaluations"
            last = f"{format_value(course[-1].value)} at the last of {len(course):,}"
            yield _copied_quality(run, course[0].line, place, last)


def _copied_quality(run: RunLog, line: int, place: str, got: str) -> Finding:
    return make_finding(
        run.path,
        line,
        "T19.copied_quality",
        f"the quality is exactly that of {place}",
        expected="other values: another seed gives another course",
        got=got,
        hint=_NO_COPIES,
    )


_NO_COPIES = (
    "put the log of each run into the result, and no copy of another; "
    "if these are two runs, check that the seed reaches every generator"
)


_LOSSES = ("T19.copied_losses", "the losses of all blocks", "block_stop")
_TIMES = ("T19.copied_intervals", "the times between all events", "run_start")
_GENERATION_TIMES = ("T19.copied_times", "all measured times", "generation_times")

COPIED_LOSSES_MIN = 3  # of more than four digits: shorter ones agree by chance
COPIED_INTERVALS_MIN = 5
COPIED_INTERVAL_MS_MIN = 100.0  # likewise


def _retimed(runs: Sequence[RunLog], told: set[Path]) -> Iterator[Finding]:
    """Runs with all losses, or all times between events, of an earlier run."""
    seen: dict[object, RunLog] = {}
    for run in runs:
        traces = {
            ("loss", _losses(run)): _LOSSES,
            ("time", _intervals_ms(run)): _TIMES,
            ("generation", _generation_seconds(run)): _GENERATION_TIMES,
        }
        known = {trace: told_as for trace, told_as in traces.items() if trace[1]}
        same = next((trace for trace in known if trace in seen), None)
        if same is not None and run.path not in told:
            code, what, key = known[same]
            yield make_finding(
                run.path,
                run.all(key)[0].line,
                code,
                f"{what} are exactly those of {seen[same].path.name}",
                expected="other values: no two runs are alike to the last digit",
                hint=_NO_COPIES,
            )
        for trace in known:
            seen.setdefault(trace, run)


def _losses(run: RunLog) -> tuple[float, ...]:
    """The losses of all blocks, or nothing where too few have the digits to tell runs apart."""
    logged = [event.metadata.get("train_loss") for event in run.all("block_stop")]
    losses = tuple(float(loss) for loss in logged if is_number(loss) and abs(loss) < 1e300)
    telling = {loss for loss in losses if float(f"{loss:.4g}") != loss}
    return losses if len(telling) >= COPIED_LOSSES_MIN else ()


def _generation_seconds(run: RunLog) -> tuple[str, ...]:
    """What a run that generates measured."""
    return tuple(_canonical(event.value) for event in run.all("generation_times"))


def _intervals_ms(run: RunLog) -> tuple[float, ...]:
    """The times between the events of the timed part, or nothing where too few are long."""
    start = run.first("run_start")
    timed = [event.time_ms for event in run.events if start and event.line >= start.line]
    between = tuple(after - before for before, after in pairwise(timed))
    is_telling = sum(ms > COPIED_INTERVAL_MS_MIN for ms in between) >= COPIED_INTERVALS_MIN
    return between if is_telling else ()


def _values(point: QualityPoint) -> tuple[object, ...]:
    return tuple(sorted(point.metrics.items()))


def _tells_runs_apart(point: QualityPoint, definition: Definition) -> bool:
    """False where every metric is a share of counted samples: two of those agree by chance."""
    counts = [value * definition.evaluation_samples for value in point.metrics.values()]
    return any(abs(count - round(count)) > 1e-6 for count in counts if math.isfinite(count))


def _at_the_same_time(runs: Sequence[RunLog]) -> Iterator[Finding]:
    """Runs that started before an earlier one on the same system had stopped."""
    last_of: dict[str | None, RunLog] = {}
    timed = [run for run in runs if run.seconds is not None and run.seconds >= 0]
    for run in sorted(timed, key=lambda run: (_time(run, "run_start"), _time(run, "run_stop"))):
        system = run.text("submission_platform")
        before = last_of.get(system)
        if before is not None and _time(run, "run_start") < _time(before, "run_stop"):
            overlap_s = (_time(before, "run_stop") - _time(run, "run_start")) / 1000
            yield make_finding(
                run.path,
                run.all("run_start")[0].line,
                "T19.overlap",
                "two runs at the same time on one system",
                expected=f"run_start after run_stop of {before.path.name}, "
                f"line {before.all('run_stop')[0].line}",
                got=f"run_start {overlap_s:,.3f} seconds before it",
                hint="make the runs of a result one after the other, each on the whole system",
            )
        if before is None or _time(run, "run_stop") > _time(before, "run_stop"):
            last_of[system] = run


def _time(run: RunLog, key: str) -> float:
    return run.all(key)[0].time_ms
