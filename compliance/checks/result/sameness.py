"""T18: the runs of a result differ in seed and time alone."""

from collections import Counter
from collections.abc import Iterator, Sequence

from cepheid.compliance.checks.definitions import BATCH_SIZE, find_division
from cepheid.compliance.checks.log.structure import find_phase_end
from cepheid.compliance.checks.registry import Needs, Place, rule
from cepheid.compliance.finding import Finding, breach, encode_canonically, format_value
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.compliance.read.logs import ResultLogs
from cepheid.rules.definition import Definition
from cepheid.rules.events import Phase

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
def check_sameness(result: ResultLogs, definition: Definition, place: Place) -> Iterator[Finding]:
    """Check that the runs of a result differ in seed and time alone (T18)."""
    closed = find_division(result.runs[0], place) == "closed"
    for key in _SHARED:
        if not (key.startswith("submission_") and place.system is not None):  # else T14 compares
            yield from _check_key(result.runs, key)
    yield from _check_key(result.runs, "task_digest", may_lack=True)
    for name, allowed in definition.hyperparameters.items():
        if not (closed and allowed.fixed):  # T12 compares fixed values with the definition
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
                run,
                event.line if event else find_phase_end(run, Phase.INIT),
                "T18.differs",
                key=key,
                other=reference.path.name,
                expected=_format_logged(reference, key),
                value=_format_logged(run, key),
            )


def _format_logged(run: RunLog, key: str) -> str:
    event = run.first(key)
    return format_value(event.value) if event else f"no {key}"
