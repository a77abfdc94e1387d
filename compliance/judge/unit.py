"""Judge the logs of one result, or of many in several processes.

This is the only place where submitted logs are opened and parsed.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from cepheid.compliance.checks import check_log, check_result
from cepheid.compliance.checks.mlperf.requirements import compare_with_mlcommons, is_broken
from cepheid.compliance.checks.registry import Place, find_log_definition, find_round_benchmark
from cepheid.compliance.checks.result.convergence import compare_convergence
from cepheid.compliance.checks.result.traces import RunTrace, trace_runs
from cepheid.compliance.failure import Failures
from cepheid.compliance.finding import Finding
from cepheid.compliance.read.contents import ResultFolder
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.compliance.read.logs import ResultLogs, read_logs
from cepheid.compliance.read.summary import HasTexts, ResultSummary, summarize
from cepheid.compliance.score import mlcommons
from cepheid.compliance.score.convergence import Convergence
from cepheid.rules import rcp, rounds
from cepheid.rules.definition import Definition
from cepheid.rules.host import follow_parent, usable_processors
from cepheid.rules.rounds import Round

Kept = Literal["findings", "summaries", "courses"]
"""What remains of judged logs: findings alone, also what tables show, also what draws the runs."""


@dataclass(frozen=True)
class Unit:
    """The logs of one result, which can be judged by themselves in any process.

    ``with_digests`` asks for the digests of the files.
    """

    folder: ResultFolder
    place: Place
    judged_in: Round
    with_digests: bool = False
    keep: Kept = "summaries"


@dataclass(frozen=True)
class JudgedUnit:
    """What the judging of a unit leaves; the logs themselves are gone.

    ``convergence`` compares the result with the reference, None where rule T21 does not apply;
    ``of_mlcommons`` does so in a round of MLPerf, by rule M3.
    ``traces`` are what its runs are compared by with those of all other results.
    """

    findings: tuple[Finding, ...]
    summary: ResultSummary
    convergence: Convergence | None = None
    of_mlcommons: mlcommons.Convergence | None = None
    traces: tuple[RunTrace, ...] = ()


def judge_unit(unit: Unit) -> JudgedUnit:
    """Parse each log of a result once, run every check, and keep a summary.

    What fails in that is an error of the result (S15), and the rest of it is judged.
    """
    failures, place, path = Failures(), unit.place, unit.folder.path
    logs, definition = ResultLogs(unit.folder, ()), None
    with failures.caught(path):
        logs = read_logs(unit.folder, unit.with_digests, unit.judged_in.log.is_lenient)
    with failures.caught(path):
        definition = find_definition(logs.runs, place)
    findings: list[Finding] = []
    for run in logs.runs:
        with failures.caught(run.path):
            findings += check_log(run, place, unit.judged_in)
    if place.in_result and logs.runs:
        with failures.caught(logs.path):
            findings += check_result(logs, place, unit.judged_in)
    summary = ResultSummary(digests=logs.digests)
    with failures.caught(path):
        if unit.keep != "findings":
            summary = summarize(logs, unit.keep == "courses", definition)
        if summary.runs and unit.judged_in.is_mlperf and not unit.judged_in.as_published:
            summary = refuse_broken(summary, logs, place)
    convergence, of_mlcommons, traces = None, None, tuple[RunTrace, ...]()
    benchmark = find_round_benchmark(logs.runs[0], place) if logs.runs else None
    if benchmark:
        with failures.caught(path):
            of_mlcommons = compare_with_mlcommons(logs, benchmark, place)
    if definition and logs.runs:
        with failures.caught(path):
            points = rcp.load(definition.name, definition.scale, place.round)
            convergence = compare_convergence(logs, definition, place, points)
    if definition and place.in_result:
        with failures.caught(path):
            traces = trace_runs(logs, definition)
    return JudgedUnit((*findings, *failures.findings), summary, convergence, of_mlcommons, traces)


def refuse_broken(summary: ResultSummary, logs: ResultLogs, place: Place) -> ResultSummary:
    """Return a summary in which logs that mlcommons refuses count as runs that did not converge."""
    broken = {run.path for run in logs.runs if is_broken(run, place)}
    runs = (replace(run, is_refused=run.path in broken) for run in summary.runs)
    return replace(summary, runs=tuple(runs))


def find_definition(runs: Sequence[HasTexts], place: Place) -> Definition | None:
    """Return the definition that a result is judged by.

    That is the one that the folder names, else the first one that a log names. None where there is
    no benchmark of that name and scale, and in a round of MLPerf.
    """
    if rounds.load(place.round).is_mlperf:
        return None
    no_log = RunLog(Path(), ())  # a result without logs is judged by its folder's name
    known = (find_log_definition(run, place) for run in (*runs, no_log))
    return next(filter(None, known), None)


LOGS_FOR_PROCESSES = 64  # fewer are judged sooner than processes are started

Each = Callable[[Callable[[Unit], JudgedUnit], Sequence[Unit]], Iterable[JudgedUnit]]
"""Calls a function with each unit, and gives the answers in the order of the units."""

Progress = Callable[[int, int], None]  # logs judged so far, and all of them


def use_processes(jobs: int | None, progress: Progress = lambda done, total: None) -> Each:
    """Return an ``each`` for ``judge`` that judges in ``jobs`` processes.

    None chooses the number of processes by the number of logs. The answers come in the order of
    the units, whichever process finishes first. An exception in a process is raised here, and so
    is one for a process that was killed.
    """

    def each(function: Callable[[Unit], JudgedUnit], units: Sequence[Unit]) -> Iterator[JudgedUnit]:
        logs = sum(len(unit.folder.runs) for unit in units)
        usual = usable_processors() if logs >= LOGS_FOR_PROCESSES else 1
        processes = min(len(units), usual if jobs is None else jobs)
        answers = (
            _map_in_pool(function, units, processes) if processes > 1 else map(function, units)
        )
        done = 0
        for unit, answer in zip(units, answers, strict=True):
            done += len(unit.folder.runs)
            progress(done, logs)
            yield answer

    return each


def _map_in_pool(
    function: Callable[[Unit], JudgedUnit], units: Sequence[Unit], processes: int
) -> Iterable[JudgedUnit]:
    from concurrent.futures import ProcessPoolExecutor  # here: a single log needs none of it

    chunk = max(1, min(16, len(units) // (8 * processes)))
    with ProcessPoolExecutor(processes, initializer=follow_parent) as pool:
        yield from pool.map(function, units, chunksize=chunk)
