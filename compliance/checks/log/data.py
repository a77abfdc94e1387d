"""T27: what a run read is what it says."""

from collections.abc import Iterator

from cepheid.compliance.checks.registry import Needs, Place, make_finding, rule
from cepheid.compliance.finding import Finding, format_value
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules import rounds
from cepheid.rules.definition import Definition


@rule("T27", Needs.DEFINITION)
def check_data_read(run: RunLog, definition: Definition, place: Place) -> Iterator[Finding]:
    """Check that a run read the data whose digest it logs (T27)."""
    logged, read = run.first("data_digest"), run.first("data_read")
    if read is not None:
        if logged is not None and read.value != logged.value:
            yield make_finding(
                run.path,
                read.line,
                "T27.other_data",
                "the run did not read the data that it names",
                expected=f"{format_value(logged.value)}, the data_digest on line {logged.line}",
                got=format_value(read.value),
                hint="delete the data, prepare them again (`cepheid data`) and repeat the run; "
                "this log never counts, so rename it, for example to interrupted_0.txt",
            )
        return
    stop = run.first("run_stop")
    if stop is None or not run.converged or not run.is_complete or run.grows:
        return
    if run.text("code_digest") not in rounds.load(place.round).data_not_proven:
        yield make_finding(
            run.path,
            stop.line,
            "T27.missing",
            "the run does not prove which data it read",
            expected="data_read after run_stop, the digest of the bytes that the run read",
            got="no such event",
            hint="digest the data files after run_stop, as rule T27 says, and log it as data_read",
        )
    elif run.index in (0, None):  # once for each result
        yield make_finding(
            run.path,
            stop.line,
            "T27.not_proven",
            "this result is older than the proof of its data",
            severity="note",
            hint="a new result has data_read in each of its logs",
        )
