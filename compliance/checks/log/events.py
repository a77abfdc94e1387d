"""T2: the events of a log are those of the table."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from cepheid.compliance.checks.log.structure import (
    SUGGESTED_MAX,
    check_record,
    describe_phase,
    find_phase_end,
    find_second_run,
    suggest_keys,
)
from cepheid.compliance.checks.registry import Needs, Place, find_log_definition, rule
from cepheid.compliance.finding import Finding, breach, format_value
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules.errors import did_you_mean
from cepheid.rules.events import (
    EVENTS,
    IMPLEMENTATION_TYPES,
    STATUS_ABORTED,
    EventRule,
    Phase,
    has_type,
    is_blank,
    make_hyperparameter_rule,
)


@rule("T2", Needs.RECORDS)
def check_events(run: RunLog, place: Place) -> Iterator[Finding]:
    """Check that the events are those of the table, as often and of the types that it says (T2)."""
    ended = run.first("init_aborted")
    if ended is not None:
        yield breach(run, ended, "T2.init_aborted", reason=format_value(ended.value))
        return
    definition = find_log_definition(run, place)
    hyperparameters = definition.hyperparameters if definition else {}
    known_events = EVENTS[definition.kind if definition else "train"]
    rules = {**known_events, **{name: make_hyperparameter_rule(name) for name in hyperparameters}}
    known = set(rules)
    if definition:
        yield from _check_unknown_keys(run, known)
    if run.is_complete:
        yield from _check_counts(run, rules, misspelt=set(suggest_keys(run, known).values()))
    yield from _check_records(run, rules)
    yield from _check_implementation(run)


def _check_unknown_keys(run: RunLog, known: set[str]) -> Iterator[Finding]:
    meant = suggest_keys(run, known)
    unknown = [key for key in run.by_key if key not in known]
    for number, key in enumerate(unknown):
        events = run.by_key[key]
        close = [meant[key]] if key in meant else known if number < SUGGESTED_MAX else []
        guess = did_you_mean(meant.get(key, key[:100]), close)
        times = "" if len(events) == 1 else f" ({len(events):,} times)"
        if not key.isascii():  # it may look like another key
            times += f", in ASCII {key[:100]!a}"
        yield breach(
            run, events[0], "T2.unknown_key", key=format_value(key), times=times, guess=guess
        )


def _check_counts(
    run: RunLog, known: Mapping[str, EventRule], misspelt: set[str]
) -> Iterator[Finding]:
    may_lack_blocks = run.status == STATUS_ABORTED  # the run may have ended in the first block
    second = find_second_run(run)
    if second is not None:
        yield breach(
            run,
            second,
            "T2.second_run",
            key=format_value(second.key),
            line=run.all(second.key)[0].line,
        )
        return
    timed = run.all("run_start")[0].line if run.all("run_start") else math.inf
    for key, event_rule in known.items():
        events = run.all(key)
        again = events[1:2] if event_rule.count != "at least once" else ()
        if again and not (run.grows and again[0].line > timed):  # it may belong to another run
            yield breach(
                run,
                again[0],
                "T2.repeated",
                key=key,
                times=len(events),
                line=events[0].line,
                count=event_rule.count,
            )
        if events or key in misspelt or event_rule.count == "at most once":
            continue
        is_of_block = event_rule.phase is Phase.TIMED and key != "run_start"
        if key == "run_stop" or (is_of_block and may_lack_blocks):
            continue  # T7 reports a run that did not end
        yield breach(
            run,
            find_phase_end(run, event_rule.phase),
            "T2.missing",
            key=key,
            meaning=event_rule.meaning,
            count=event_rule.count,
            phase=describe_phase(key, event_rule.phase),
        )


def _check_records(run: RunLog, known: Mapping[str, EventRule]) -> Iterator[Finding]:
    """Check known records; report the same mistake once, with the number of records."""
    broken_lines = {problem.line for problem in run.problems}
    mistakes: dict[tuple[str, str, str], list[Finding]] = {}
    for event in run.events:
        if event.key in known and event.line not in broken_lines:
            for finding in check_record(run, event, known[event.key]):
                mistake = (event.key, finding.code, finding.expected)
                mistakes.setdefault(mistake, []).append(finding)
    for same in mistakes.values():
        times = f" (in {len(same):,} records)" if len(same) > 1 else ""
        yield replace(same[0], message=same[0].message + times)


def _check_implementation(run: RunLog) -> Iterator[Finding]:
    """Check the fields that the value of ``implementation`` needs."""
    event = run.first("implementation")
    if event is None or not isinstance(event.value, Mapping):
        return
    wrong = [
        name
        for name, expected in IMPLEMENTATION_TYPES.items()
        if not has_type(event.value.get(name), expected) or is_blank(event.value[name])
    ]
    if wrong:
        yield breach(
            run,
            event,
            "T2.implementation",
            names=", ".join(wrong),
            types=", ".join(f"{name} ({IMPLEMENTATION_TYPES[name]})" for name in wrong),
            values=", ".join(
                format_value(event.value[name]) if name in event.value else "nothing"
                for name in wrong
            ),
            fields=", ".join(IMPLEMENTATION_TYPES),
        )
