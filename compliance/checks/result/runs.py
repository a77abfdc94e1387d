"""T16 and T17: how many runs a result has, and how many may fail to converge."""

from collections.abc import Iterator

from cepheid.compliance.checks.registry import Needs, Place, rule
from cepheid.compliance.finding import Finding, breach, format_value
from cepheid.compliance.read.logs import ResultLogs
from cepheid.rules.definition import Definition
from cepheid.rules.events import STATUS_ABORTED
from cepheid.rules.rounds import RoundBenchmark


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
        yield breach(
            folder, None, "T16.missing", index=gaps[0], last=len(indices) - 1, found=indices[-1]
        )
    if len(runs) < required:
        yield breach(
            folder,
            None,
            "T16.too_few",
            case="submitted" if place.in_submission else "",
            runs=len(runs),
            required=required,
        )
    elif len(runs) > required:
        yield breach(
            folder, None, "T16.too_many", runs=len(runs), required=required, last=required - 1
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
    for run in aborted:
        stop = run.first("run_stop")
        reason = stop.metadata.get("reason") if stop else None
        because = f": {format_value(reason)}" if isinstance(reason, str) and reason else ""
        because = because if stop else ": the log ends without run_stop"
        yield breach(
            run,
            stop or (run.events[-1] if run.events else None),
            "T17.not_converged",
            case="in_result" if place.in_result else "",
            because=because,
            allowed=allowed,
            plural="" if allowed == 1 else "s",
        )
    if place.in_result and len(aborted) > allowed:
        yield breach(
            result,
            None,
            "T17.too_many",
            aborted=len(aborted),
            runs=len(result.runs),
            allowed=allowed,
        )
