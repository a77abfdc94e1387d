"""T27: what a run read is what it says."""

from collections.abc import Iterator

from cepheid.compliance.checks.registry import Needs, Place, rule
from cepheid.compliance.finding import Finding, breach, format_value
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules import rounds
from cepheid.rules.definition import Definition


@rule("T27", Needs.DEFINITION)
def check_data_read(run: RunLog, definition: Definition, place: Place) -> Iterator[Finding]:
    """Check that a run read the data whose digest it logs (T27)."""
    logged, read = run.first("data_digest"), run.first("data_read")
    if read is not None:
        if logged is not None and read.value != logged.value:
            yield breach(
                run,
                read,
                "T27.other_data",
                logged=format_value(logged.value),
                line=logged.line,
                read=format_value(read.value),
            )
        return
    stop = run.first("run_stop")
    if stop is None or not run.converged or not run.is_complete or run.grows:
        return
    if run.text("code_digest") not in rounds.load(place.round).data_not_proven:
        yield breach(run, stop, "T27.missing")
    elif run.index in (0, None):  # once for each result
        yield breach(run, stop, "T27.not_proven")
