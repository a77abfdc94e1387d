"""M1 to M6 and M8: the requirements of a round of MLPerf, which are data of the round."""

from collections.abc import Iterator, Mapping

from cepheid.compliance.checks.mlperf.conditions import (
    find_lacking,
    find_requirements,
    format_count,
    format_metadata,
)
from cepheid.compliance.checks.registry import Needs, Place, make_finding, rule
from cepheid.compliance.finding import Finding, format_value
from cepheid.compliance.read.log.records import EVENTS_MAX, Event
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.compliance.read.logs import ResultLogs
from cepheid.rules.definition import Definition
from cepheid.rules.events import is_number
from cepheid.rules.requirements import RequiredCount, Requirement, Requirements
from cepheid.rules.rounds import RoundBenchmark

_FITTING: Mapping[RequiredCount, range] = {  # how many records of a key are surely right
    "once": range(1, 2),
    "strictly once": range(1, 2),
    "at least once": range(1, EVENTS_MAX + 1),
    "never": range(1),
}


@rule("M1", Needs.RECORDS)
def check_counts(run: RunLog, place: Place) -> Iterator[Finding]:
    """Check that every required record is there, as often as required (M1)."""
    reported: set[frozenset[str]] = set()
    for requirement, why in find_requirements(run, place, "count"):
        if requirement.count is None:
            continue
        events = run.all(requirement.key)
        if len(events) in _FITTING[requirement.count]:
            continue
        either = frozenset((requirement.key, *requirement.or_else))
        if either in reported:
            continue
        if requirement.count == "never":
            reported.add(either)
            yield _report_too_many(run, requirement, why, events)
        elif not any(run.all(key) for key in either):
            reported.add(either)
            if requirement.key != "run_stop":  # T17 reports a run that did not end
                yield _report_missing(run, requirement, why)
        elif len(events) > 1 and requirement.count != "at least once":
            reported.add(either)
            yield _report_too_many(run, requirement, why, events)


def _report_missing(run: RunLog, requirement: Requirement, why: Requirements) -> Finding:
    return make_finding(
        run.path,
        None,
        "M1.missing",
        " or ".join((requirement.key, *requirement.or_else)) + " is missing",
        expected=f"{requirement.key} {why}{requirement.count}",
        hint=f"log {requirement.key} with mllog when it is known or happens; run again",
    )


def _report_too_many(
    run: RunLog, requirement: Requirement, why: Requirements, events: tuple[Event, ...]
) -> Finding:
    """Return a warning if the values are equal and one is allowed, otherwise an error."""
    same = all(event.value == events[0].value for event in events)
    first, second = events[0], events[:2][-1]
    odd = next((event for event in events if event.value != first.value), second)
    if requirement.count == "never":
        code, line = "M1.not_allowed", first.line
        message = f"{requirement.key} does not belong here"
    else:
        message = f"{requirement.key} appears {len(events):,} times, first on line {first.line}"
        code, line = "M1.repeated", odd.line
    return make_finding(
        run.path,
        line,
        code,
        message,
        expected=f"{requirement.key} {why}{requirement.count}",
        got=f"{format_value(first.value)}" + ("" if same else f" and {format_value(odd.value)}"),
        hint="log it once, from one rank, with the value that was used",
        severity="warning" if same and requirement.count == "once" else "error",
    )


@rule("M2", Needs.RECORDS)
def check_values(run: RunLog, place: Place) -> Iterator[Finding]:
    """Check that every value is one that the round allows (M2)."""
    for requirement, why in find_requirements(run, place, "value"):
        if requirement.value is None:
            continue
        wrong = [
            event for event in run.all(requirement.key) if not requirement.value.holds(event.value)
        ]
        if wrong:
            yield make_finding(
                run.path,
                wrong[0].line,
                "M2.value",
                f"{requirement.key} has a value that the round does not allow{format_count(wrong)}",
                expected=f"{why}a value {requirement.value}",
                got=format_value(wrong[0].value),
                hint="run again with an allowed value, and log the one that was used",
            )


@rule("M3", Needs.RECORDS)
def check_metadata(run: RunLog, place: Place) -> Iterator[Finding]:
    """Check that the metadata of records have the required fields (M3)."""
    for requirement, _ in find_requirements(run, place, "metadata"):
        if requirement.metadata is None:
            continue
        wrong = find_lacking(requirement.metadata, run.all(requirement.key))
        if wrong:
            event, lacks = wrong[0]
            yield make_finding(
                run.path,
                event.line,
                "M3.metadata",
                f"{requirement.key} has wrong or missing metadata"
                f"{format_count([e for e, _ in wrong])}",
                expected=lacks,
                got=format_metadata(event),
                hint=f"give every {requirement.key} these fields of metadata",
            )


@rule("M4", Needs.RECORDS)
def check_places(run: RunLog, place: Place) -> Iterator[Finding]:
    """Check that records stand after the records that must precede them (M4)."""
    for requirement, _ in find_requirements(run, place, "after", "not_after"):
        events = run.all(requirement.key)
        if not events:
            continue
        for key in requirement.after:
            other = run.first(key)
            if other is None or other.line > events[0].line:
                yield _report_misplaced(run, events[0], "after", key)
        for key in requirement.not_after:
            other = run.first(key)
            if other is not None and other.line < events[-1].line:
                yield _report_misplaced(run, events[-1], "before", key)


def _report_misplaced(run: RunLog, event: Event, where: str, key: str) -> Finding:
    other = run.first(key)
    return make_finding(
        run.path,
        event.line,
        "M4.misplaced",
        f"{event.key} does not stand {where} {key}",
        expected=f"{event.key} {where} {key}",
        got=f"{key} on line {other.line}" if other else f"no {key}",
        hint="log each event when it happens: initialisation ends before the run starts",
    )


@rule("M5", Needs.RECORDS)
def check_times(run: RunLog, place: Place) -> Iterator[Finding]:
    """Check that initialisation ends in time and that a run takes some time (M5)."""
    for requirement, why in find_requirements(run, place, "later_than", "within"):
        event = run.first(requirement.key)
        if event is None:
            continue
        for key in requirement.later_than:
            other = run.first(key)
            if other is not None and event.time_ms <= other.time_ms:
                yield make_finding(
                    run.path,
                    event.line,
                    "M5.no_time",
                    f"{requirement.key} is not later than {key}",
                    expected=f"a time after that of line {other.line}",
                    got=f"{(event.time_ms - other.time_ms) / 1000:,.3f} seconds after it",
                    hint="write each record when it happens, with the clock of that moment",
                )
        if requirement.within is not None and run.all(requirement.within.since):
            since_ms = min(started.time_ms for started in run.all(requirement.within.since))
            minutes = (event.time_ms - since_ms) / 60_000
            if minutes >= requirement.within.minutes:
                yield make_finding(
                    run.path,
                    event.line,
                    "M5.too_late",
                    f"{requirement.key} comes too late",
                    expected=f"{why}less than {requirement.within.minutes:g} minutes "
                    f"after {requirement.within.since}",
                    got=f"{minutes:.1f} minutes",
                    hint="compile less, or keep what was compiled",
                )


@rule("M6", Needs.RECORDS)
def check_target(run: RunLog, place: Place) -> Iterator[Finding]:
    """Check that qualities are numbers, and that a success reached the target (M6)."""
    for requirement, why in find_requirements(run, place, "some_value"):
        events = run.all(requirement.key)
        if requirement.some_value is None or not events:
            continue
        wrong = [event for event in events if not is_number(event.value)]
        if wrong:
            yield make_finding(
                run.path,
                wrong[0].line,
                "M6.not_a_number",
                f"{requirement.key} is not a number{format_count(wrong)}",
                expected=f"{why}a number",
                got=format_value(wrong[0].value),
                hint="log what the evaluation found",
            )
        elif run.converged and not any(
            requirement.some_value.holds(event.value) for event in events
        ):
            numbers = [event.value for event in events]
            yield make_finding(
                run.path,
                events[-1].line,
                "M6.false_success",
                f"no {requirement.key} reaches the target, and the run is called a success",
                expected=f"{why}a value {requirement.some_value}",
                got=f"{format_value(numbers[-1])} at the last of {len(numbers):,}",
                hint="train until the target is reached, or end the run as aborted",
            )


@rule("M8", Needs.RESULT)
def check_number_of_runs(
    result: ResultLogs, judged_by: Definition | RoundBenchmark, place: Place
) -> Iterator[Finding]:
    """Check that a result has as many logs as the round requires (M8)."""
    required, runs = judged_by.runs.required, len(result.runs)
    is_weak = result.folder.scale == "weak"  # HPC allows any number of models there
    if place.in_result and (runs < required or (runs > required and not is_weak)):
        yield make_finding(
            result.path,
            None,
            "M8.number_of_runs",
            f"{runs} run{'' if runs == 1 else 's'}, but a result of {judged_by.name} holds "
            f"{required}",
            expected=f"{required} logs named result_<k>.txt",
            got=str(runs),
            hint="put every run of the result into its folder, and nothing else",
        )
