"""T2: the events of a log are those of the table; and whether a log is whole.

The course of a log can be judged only if it is.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Any

from cepheid.compliance.checks.registry import Needs, Place, find_log_definition, rule
from cepheid.compliance.finding import Finding, breach, format_value
from cepheid.compliance.read.log.records import EVENT_TYPES, Event
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules.definition import Definition
from cepheid.rules.errors import did_you_mean
from cepheid.rules.events import (
    CHOICES,
    EVENTS,
    IMPLEMENTATION_TYPES,
    METADATA_TYPES,
    STATUS_ABORTED,
    EventRule,
    Phase,
    has_type,
    is_blank,
    make_hyperparameter_rule,
)


def check_record(run: RunLog, event: Event, event_rule: EventRule) -> Iterator[Finding]:
    """Check the event type, the type of the value and the metadata of one record."""
    if event.event_type in EVENT_TYPES and event.event_type != event_rule.event_type:
        yield breach(
            run, event, "T2.event_type", expected=event_rule.event_type, logged=event.event_type
        )
    allowed = CHOICES.get(event.key)
    fits = has_type(event.value, event_rule.value) and (allowed is None or event.value in allowed)
    fits = fits and not (event_rule.value == "string" and is_blank(event.value))
    if not fits and event.key != "cache_clear":  # T6 judges that value
        expected = _describe_choices(allowed) if allowed else event_rule.value
        yield breach(run, event, "T2.value", expected=expected, meaning=event_rule.meaning)
    wrong = [name for name in event_rule.metadata if not _has_right_metadata(event, name)]
    if wrong:
        types, values = _describe_wrong(wrong, event.metadata, _describe_metadata)
        yield breach(
            run, event, "T2.metadata", names=", ".join(wrong), types=types, values=values,
            required=", ".join(event_rule.metadata),
        )  # fmt: skip


def _describe_wrong(
    wrong: Sequence[str], given: Mapping[str, Any], describe: Callable[[str], str]
) -> tuple[str, str]:
    values = (format_value(given[name]) if name in given else "nothing" for name in wrong)
    types = (f"{name} ({describe(name)})" for name in wrong)
    return ", ".join(types), ", ".join(values)


def _has_right_metadata(event: Event, name: str) -> bool:
    value, allowed = event.metadata.get(name), CHOICES.get(name)
    return has_type(value, METADATA_TYPES[name]) and (allowed is None or value in allowed)


def _describe_metadata(name: str) -> str:
    return _describe_choices(CHOICES[name]) if name in CHOICES else METADATA_TYPES[name]


def _describe_choices(allowed: tuple[str, ...]) -> str:
    return " or ".join(f'"{word}"' for word in allowed)


SUGGESTED_MAX = 100  # unknown keys of a log; the search for similar keys is slow


def suggest_keys(run: RunLog, known: set[str]) -> Mapping[str, str]:
    """Return the missing key that each unknown key of the log looks like."""
    import difflib

    missing = [key for key in known if not run.all(key)]
    suggestions: dict[str, str] = {}
    unknown = (key for key in run.by_key if key not in known)
    for key in islice(unknown, SUGGESTED_MAX):
        close = [other for other in missing if _looks_like(key, other)]
        close += difflib.get_close_matches(key[:100], missing, n=1)
        if close:
            suggestions[key] = close[0]
    return suggestions


def _looks_like(key: str, other: str) -> bool:
    """Return True if the ASCII letters agree and the others come from another script."""
    if key.isascii() or len(key) != len(other):
        return False
    return all(a == b for a, b in zip(key, other, strict=True) if a.isascii())


PHASE_PLACES = {
    Phase.IDENTITY: "before init_start",
    Phase.INIT: "between init_start and init_stop",
    Phase.TIMED: "between run_start and run_stop",
    Phase.AFTER: "after run_stop",
}


_OWN_PLACES = {
    "init_start": "after the identity, where the initialisation begins",
    "init_stop": "after init_start, where the initialisation ends",
    "run_start": "after init_stop, where the clock starts",
    "run_stop": "where the clock stops",
}


def describe_phase(key: str, phase: Phase) -> str:
    """Return where an event stands; those that limit a phase stand at its ends."""
    return _OWN_PLACES.get(key, PHASE_PLACES[phase])


def find_phase_end(run: RunLog, phase: Phase) -> int | None:
    """Return the line of the record that ends a phase, where a missing event is reported."""
    closing = {
        Phase.IDENTITY: ("init_start", "init_stop", "run_start"),
        Phase.INIT: ("init_stop", "run_start", "run_stop"),
        Phase.TIMED: ("run_stop",),
    }
    for key in closing[phase]:
        event = run.first(key)
        if event is not None:
            return event.line
    return run.events[-1].line if run.events else None


_ONCE_EARLY = {
    key
    for key, event_rule in EVENTS["train"].items()
    if event_rule.count == "once" and event_rule.phase < Phase.TIMED
}


def find_second_run(run: RunLog) -> Event | None:
    """Return the first record of a second run in the same file, or None.

    Such a record repeats an event after run_stop or, where the first run was killed, after a
    run_start that is not the last one.
    """
    start, stop = run.first("run_start"), run.first("run_stop")
    if start is None or all(len(run.all(key)) < 2 for key in _ONCE_EARLY):
        return None
    again = [
        event
        for event in run.events
        if event.key in _ONCE_EARLY and event.line > max(start.line, run.all(event.key)[0].line)
    ]
    after_stop = [event for event in again if stop and event.line > stop.line > start.line]
    doors = ("init_start", "init_stop", "run_start")
    begins_anew = all(len(run.all(key)) > 1 for key in doors)
    return next(iter(after_stop or (again if begins_anew else ())), None)


@lru_cache(maxsize=1)  # T3, T4 and the rules of the timeline call it once per log each
def find_whole_definition(run: RunLog, place: Place) -> Definition | None:
    """Return the definition of a log that is whole, else None."""
    definition = find_log_definition(run, place)
    return definition if definition and is_whole(run, definition) else None


def is_whole(run: RunLog, definition: Definition) -> bool:
    """Return True if every event that gives a log its structure is there and well formed.

    Order, cadence and quality can be judged only then. T1, T2 and T7 report what is missing.
    """
    if run.has_lost_records or run.first("init_aborted") is not None or find_second_run(run):
        return False
    may_lack_blocks = run.status == STATUS_ABORTED
    known = EVENTS[definition.kind]
    for key, event_rule in known.items():
        count = len(run.all(key))
        is_of_block = event_rule.phase is Phase.TIMED and key not in ("run_start", "run_stop")
        if may_lack_blocks and is_of_block and not count:
            continue
        if event_rule.count == "once" and event_rule.phase is Phase.TIMED and count != 1:
            return False
        if key in ("init_start", "init_stop") and count != 1:
            return False
        if event_rule.count == "at least once" and not count:
            return False
    start = run.first("run_start")
    assert start is not None
    for event in run.events:
        rule_of_event = known.get(event.key)
        if rule_of_event is None:
            if event.line > start.line and event.key not in definition.hyperparameters:
                return False  # perhaps a misspelt block_stop
        elif rule_of_event.phase is Phase.TIMED and any(check_record(run, event, rule_of_event)):
            return False
    return True


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
            run, second, "T2.second_run", key=format_value(second.key),
            line=run.all(second.key)[0].line,
        )  # fmt: skip
        return
    timed = run.all("run_start")[0].line if run.all("run_start") else math.inf
    for key, event_rule in known.items():
        events = run.all(key)
        again = events[1:2] if event_rule.count != "at least once" else ()
        if again and not (run.grows and again[0].line > timed):  # it may belong to another run
            yield breach(
                run, again[0], "T2.repeated", key=key, times=len(events), line=events[0].line,
                count=event_rule.count,
            )  # fmt: skip
        if events or key in misspelt or event_rule.count == "at most once":
            continue
        is_of_block = event_rule.phase is Phase.TIMED and key != "run_start"
        if key == "run_stop" or (is_of_block and may_lack_blocks):
            continue  # T7 reports a run that did not end
        yield breach(
            run, find_phase_end(run, event_rule.phase), "T2.missing", key=key,
            meaning=event_rule.meaning, count=event_rule.count,
            phase=describe_phase(key, event_rule.phase),
        )  # fmt: skip


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
    event = run.first("implementation")
    if event is None or not isinstance(event.value, Mapping):
        return
    said = {name: event.value.get(name) for name in IMPLEMENTATION_TYPES}
    asked = IMPLEMENTATION_TYPES.items()
    wrong = [name for name, of in asked if not has_type(said[name], of) or is_blank(said[name])]
    if wrong:
        types, values = _describe_wrong(wrong, event.value, IMPLEMENTATION_TYPES.__getitem__)
        yield breach(
            run, event, "T2.implementation", names=", ".join(wrong), types=types, values=values,
            fields=", ".join(IMPLEMENTATION_TYPES),
        )  # fmt: skip
