"""T16 to T18: how many runs a result has, how many may fail to converge, and what they share."""

from collections import Counter
from collections.abc import Iterator, Sequence

from cepheid.compliance.checks.log.events import find_phase_end
from cepheid.compliance.checks.registry import BATCH_SIZE, Needs, Place, find_division, rule
from cepheid.compliance.checks.result.seeds import are_numbered_from_one
from cepheid.compliance.finding import Finding, breach, encode_canonically, format_value
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.compliance.read.logs import ResultLogs
from cepheid.rules.definition import Definition
from cepheid.rules.events import STATUS_ABORTED, Phase
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
    if are_numbered_from_one(runs, definition):
        yield breach(folder, None, "T16.from_one", runs=len(runs), last=len(runs) - 1)
    elif gaps:
        yield breach(
            folder, None, "T16.missing", index=gaps[0], last=len(indices) - 1, found=indices[-1]
        )
    if len(runs) < required:
        yield breach(
            folder, None, "T16.too_few", case="submitted" if place.in_submission else "",
            runs=len(runs), required=required,
        )  # fmt: skip
    elif len(runs) > required:
        yield breach(
            folder, None, "T16.too_many", runs=len(runs), required=required, last=required - 1
        )
    elif definition.provisional:
        yield breach(folder, None, "T16.provisional", why=definition.provisional)


@rule("T17", Needs.RESULT)
def check_converged_runs(
    result: ResultLogs, definition: Definition | RoundBenchmark, place: Place
) -> Iterator[Finding]:
    """Check that at most `runs.drop.slowest` runs did not converge (T17).

    An aborted run that is checked by itself is an error. In a round of MLPerf, every log that does
    not say success is such a run, also one that was cut short.
    """
    is_mlperf = isinstance(definition, RoundBenchmark)
    aborted = [
        run
        for run in result.runs
        if run.status == STATUS_ABORTED or (is_mlperf and not run.converged)
    ]
    allowed = definition.runs.drop_slowest
    for run in aborted:
        stop = run.first("run_stop")
        reason = stop.metadata.get("reason") if stop else None
        because = f": {format_value(reason)}" if isinstance(reason, str) and reason else ""
        because = because if stop else ": the log ends without run_stop"
        yield breach(
            run, stop or (run.events[-1] if run.events else None), "T17.not_converged",
            case="in_result" if place.in_result else "", because=because, allowed=allowed,
            plural="" if allowed == 1 else "s",
        )  # fmt: skip
    if place.in_result and len(aborted) > allowed:
        yield breach(
            result, None, "T17.too_many", aborted=len(aborted), runs=len(result.runs),
            allowed=allowed,
        )  # fmt: skip


_SHARED = (
    "submission_org", "submission_platform", "submission_benchmark", "submission_scale",
    "submission_division", "code_digest", "data_digest", "implementation",
)  # fmt: skip


@rule("T18", Needs.RESULT)
def check_sameness(result: ResultLogs, definition: Definition, place: Place) -> Iterator[Finding]:
    """Check that the runs of a result differ in seed and time alone (T18)."""
    closed = find_division(result.runs[0], place) == "closed"
    for key in _SHARED:
        if not (key.startswith("submission_") and place.system is not None):  # else T14 compares
            yield from _check_key(result.runs, key)
    yield from _check_key(result.runs, "task_digest", may_lack=True)
    for name, allowed in definition.hyperparameters.items():
        if not (closed and allowed.is_constant):  # T12 compares constants with the definition
            may_lack = not closed and name != BATCH_SIZE  # otherwise T12 or T13 reports it
            yield from _check_key(result.runs, name, may_lack=may_lack)


def _check_key(runs: Sequence[RunLog], key: str, may_lack: bool = False) -> Iterator[Finding]:
    """Report the runs that log another value than most; ``may_lack`` also compares missing keys."""
    texts = {}
    for run in runs:
        event = run.first(key)
        if event is not None or (may_lack and run.is_complete):
            texts[run.path] = encode_canonically(event.value) if event else ""
    if len(set(texts.values())) < 2:
        return
    usual, _ = Counter(texts.values()).most_common(1)[0]
    reference = next(run for run in runs if texts.get(run.path) == usual)
    for run in runs:
        if texts.get(run.path, usual) != usual:
            event = run.first(key)
            yield breach(
                run, event.line if event else find_phase_end(run, Phase.INIT), "T18.differs",
                key=key, other=reference.path.name, expected=_format_logged(reference, key),
                value=_format_logged(run, key),
            )  # fmt: skip


def _format_logged(run: RunLog, key: str) -> str:
    event = run.first(key)
    return format_value(event.value) if event else f"no {key}"
