"""M1 to M6 and M8: the requirements of a round of MLPerf, which are data of the round."""

from collections.abc import Iterator, Mapping

from cepheid.compliance.checks.mlperf.conditions import (
    find_lacking,
    find_requirements,
    format_count,
    format_metadata,
)
from cepheid.compliance.checks.registry import Needs, Place, rule
from cepheid.compliance.finding import Finding, breach, format_value
from cepheid.compliance.read.log.records import EVENTS_MAX, Event
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.compliance.read.logs import ResultLogs
from cepheid.rules.definition import Definition
from cepheid.rules.events import is_number
from cepheid.rules.rounds import RoundBenchmark
from cepheid.rules.rounds.requirements import RequiredCount, Requirement, Requirements

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
    return breach(
        run,
        None,
        "M1.missing",
        keys=" or ".join((requirement.key, *requirement.or_else)),
        key=requirement.key,
        why=str(why),
        count=str(requirement.count),
    )


def _report_too_many(
    run: RunLog, requirement: Requirement, why: Requirements, events: tuple[Event, ...]
) -> Finding:
    """Return a warning if the values are equal and one is allowed, otherwise an error."""
    same = all(event.value == events[0].value for event in events)
    first, second = events[0], events[:2][-1]
    odd = next((event for event in events if event.value != first.value), second)
    values = format_value(first.value) + ("" if same else f" and {format_value(odd.value)}")
    if requirement.count == "never":
        return breach(
            run,
            first,
            "M1.not_allowed",
            key=requirement.key,
            why=str(why),
            count=str(requirement.count),
            values=values,
        )
    return breach(
        run,
        odd,
        "M1.repeated",
        case="equal" if same and requirement.count == "once" else "",
        key=requirement.key,
        times=len(events),
        line=first.line,
        why=str(why),
        count=str(requirement.count),
        values=values,
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
            yield breach(
                run,
                wrong[0],
                "M2.value",
                times=format_count(wrong),
                why=str(why),
                allowed=str(requirement.value),
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
            yield breach(
                run,
                event,
                "M3.metadata",
                times=format_count([e for e, _ in wrong]),
                lacks=lacks,
                metadata=format_metadata(event),
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
    return breach(
        run,
        event,
        "M4.misplaced",
        where=where,
        other=key,
        found=f"{key} on line {other.line}" if other else f"no {key}",
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
                yield breach(
                    run,
                    event,
                    "M5.no_time",
                    other=key,
                    line=other.line,
                    seconds=(event.time_ms - other.time_ms) / 1000,
                )
        if requirement.within is not None and run.all(requirement.within.since):
            since_ms = min(started.time_ms for started in run.all(requirement.within.since))
            minutes = (event.time_ms - since_ms) / 60_000
            if minutes >= requirement.within.minutes:
                yield breach(
                    run,
                    event,
                    "M5.too_late",
                    why=str(why),
                    most=requirement.within.minutes,
                    since=requirement.within.since,
                    minutes=minutes,
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
            yield breach(run, wrong[0], "M6.not_a_number", times=format_count(wrong), why=str(why))
        elif run.converged and not any(
            requirement.some_value.holds(event.value) for event in events
        ):
            numbers = [event.value for event in events]
            yield breach(
                run,
                events[-1],
                "M6.false_success",
                why=str(why),
                target=str(requirement.some_value),
                last=format_value(numbers[-1]),
                numbers=len(numbers),
            )


@rule("M8", Needs.RESULT)
def check_number_of_runs(
    result: ResultLogs, judged_by: Definition | RoundBenchmark, place: Place
) -> Iterator[Finding]:
    """Check that a result has as many logs as the round requires (M8)."""
    required, runs = judged_by.runs.required, len(result.runs)
    is_weak = result.folder.scale == "weak"  # HPC allows any number of models there
    if place.in_result and (runs < required or (runs > required and not is_weak)):
        yield breach(
            result,
            None,
            "M8.number_of_runs",
            runs=runs,
            plural="" if runs == 1 else "s",
            benchmark=judged_by.name,
            required=required,
        )
