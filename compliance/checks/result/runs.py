"""T16 and T17: how many runs a result has, and how many may fail to converge."""

from collections.abc import Iterator

from cepheid.compliance.checks.registry import Needs, Place, make_finding, rule
from cepheid.compliance.finding import Finding, format_value
from cepheid.compliance.read.logs import ResultLogs
from cepheid.rules.definition import Definition
from cepheid.rules.events import STATUS_ABORTED
from cepheid.rules.rounds import RoundBenchmark, Severity


@rule("T16", Needs.RESULT)
def check_number_of_runs(
    result: ResultLogs, definition: Definition, place: Place
) -> Iterator[Finding]:
    """Check that a result has the required number of logs, numbered from 0 (T16)."""
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
            hint="make them as those that are there; with `cepheid run` the same command does it",
            severity="error" if place.in_submission else "note",
        )
    elif len(runs) > required:
        yield make_finding(
            folder,
            None,
            "T16.too_many",
            f"{len(runs)} runs, but a result holds exactly {required}",
            expected=f"result_0.txt to result_{required - 1}.txt",
            got=str(len(runs)),
            hint=f"a result is the first {required} runs that were started; "
            "move later ones to another folder, and do not choose by their times",
        )


@rule("T17", Needs.RESULT)
def check_converged_runs(
    result: ResultLogs, definition: Definition | RoundBenchmark, place: Place
) -> Iterator[Finding]:
    """Check that at most `runs.drop.slowest` runs did not converge (T17).

    An aborted run that is checked by itself is an error. In a round of MLPerf, every log that does
    not say success is such a run, also one that was cut short.
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
