"""T1, T2 and T5: what makes a file a run log. Form, vocabulary, finite values."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import Any

from compliance.checks.log.identity import definition_of
from compliance.checks.registry import Needs, Place, make_finding, rule
from compliance.finding import Finding, escape, format_value
from compliance.read.records import EVENT_TYPES, Event, Problem
from compliance.read.runlog import RunLog
from rules import rounds
from rules.definition import Definition
from rules.errors import did_you_mean
from rules.events import (
    CHOICES,
    EVENTS,
    IMPLEMENTATION_TYPES,
    MARKER,
    METADATA_TYPES,
    STATUS_ABORTED,
    EventRule,
    Phase,
    has_type,
    make_hyperparameter_rule,
)
from rules.rounds import Dialect, ProblemKind

_MEND_FORM: Mapping[ProblemKind, str] = {
    "file": "check that this is the run log itself, a plain text file within the bounds of T1, and "
    "that others may read it",
    "text": "write the log as UTF-8 text; keep binary output of other programs out of it",
    "around": "begin each record at the start of a line; let other output end with a line feed",
    "place": "begin each record on a line of its own with the marker at its start; "
    "let only one process write to the log",
    "json": "write one JSON object after the marker, for example with mllog or json.dumps",
    "truncated": "the program was killed or the disk was full; run again, or copy the whole file",
    "fields": "write key, time, value and metadata, each once; mllog does",
    "schema": "write namespace, time_ms, event_type, key, value and metadata, each once, "
    "as rules/schemas/event.schema.json says",
}


@rule("T1", Needs.RECORDS)
def form(run: RunLog, place: Place) -> Iterator[Finding]:
    """Every record is one JSON object of the right fields on a line of its own."""
    asked = rounds.load(place.round).log
    yield from _other_dialects(run, asked.dialect)
    for problem in run.problems:
        if problem.kind in asked.tolerated and not problem.lost:
            continue
        yield make_finding(
            run.path,
            problem.line,
            f"T1.{problem.kind}",
            escape(problem.message),
            got=_shown_problem(problem),
            hint=_MEND_FORM[problem.kind],
        )
    if not run.events and not run.problems:
        yield make_finding(
            run.path,
            None,
            "T1.no_record",
            "the file holds no record of a run",
            expected=f'lines that begin with "{MARKER} "',
            hint="give the run log that the benchmark wrote; a log written by mllog has such lines",
        )


def _other_dialects(run: RunLog, asked: Dialect) -> Iterator[Finding]:
    for dialect, line in run.dialects.items():
        if dialect != asked:
            yield make_finding(
                run.path,
                line,
                "T1.dialect",
                f"the record is in the dialect of {_SAID[dialect]}",
                expected=f"records in the dialect of {_SAID[asked]}",
                hint="write the log with the mllog of the round, or check with --round",
            )


_SAID: Mapping[Dialect, str] = {
    "mllog": "MLPerf v0.7 and later, :::MLLOG {json}",
    "mll": "MLPerf v0.6, :::MLL <seconds> <key>: {json}",
}


def _shown_problem(problem: Problem) -> str:
    if problem.kind in ("fields", "schema"):  # JSON already, with its own quotes
        return escape(problem.got)
    return format_value(problem.got) if problem.got else ""


@rule("T2", Needs.RECORDS)
def vocabulary(run: RunLog, place: Place) -> Iterator[Finding]:
    """The events of the table are there, as often and as typed as it says, and no others."""
    ended = run.first("init_aborted")
    if ended is not None:
        yield make_finding(
            run.path,
            ended.line,
            "T2.init_aborted",
            f"the run ended before run_start: {format_value(ended.value)}",
            hint="see what the reason names, then run again; such a log never counts, "
            "so keep it out of the result, for example as interrupted_0.txt",
        )
        return
    definition = definition_of(run, place)
    hyperparameters = definition.hyperparameters if definition else {}
    known_events = EVENTS[definition.kind if definition else "train"]
    asked = {**known_events, **{name: make_hyperparameter_rule(name) for name in hyperparameters}}
    known = set(asked)
    if definition:
        yield from _unknown_keys(run, known)
    if run.is_complete:
        yield from _counts(run, asked, misspelt=set(suggestions(run, known).values()))
    yield from _shapes(run, asked)
    yield from _implementation(run)


SUGGESTED_MAX = 100  # unknown keys of a log; to look for similar ones takes long


def suggestions(run: RunLog, known: set[str]) -> Mapping[str, str]:
    """For each unknown key of the log the missing one that it looks like."""
    import difflib

    missing = [key for key in known if not run.all(key)]
    found: dict[str, str] = {}
    unknown = (key for key in run.by_key if key not in known)
    for key in islice(unknown, SUGGESTED_MAX):
        close = [other for other in missing if _looks_like(key, other)]
        close += difflib.get_close_matches(key[:100], missing, n=1)
        if close:
            found[key] = close[0]
    return found


def _looks_like(key: str, other: str) -> bool:
    """True where ``key`` is ``other`` with letters of other scripts: those that are ASCII agree."""
    if key.isascii() or len(key) != len(other):
        return False
    return all(a == b for a, b in zip(key, other, strict=True) if a.isascii())


def _unknown_keys(run: RunLog, known: set[str]) -> Iterator[Finding]:
    meant = suggestions(run, known)
    unknown = [key for key in run.by_key if key not in known]
    for number, key in enumerate(unknown):
        events = run.by_key[key]
        close = [meant[key]] if key in meant else known if number < SUGGESTED_MAX else []
        guess = did_you_mean(meant.get(key, key[:100]), close)
        times = "" if len(events) == 1 else f" ({len(events):,} times)"
        if not key.isascii():  # it may look like another one
            times += f", in ASCII {key[:100]!a}"
        yield make_finding(
            run.path,
            events[0].line,
            "T2.unknown_key",
            f"unknown key {format_value(key)}{times}{guess}",
            expected="only keys of the table under T2 and hyperparameters of the definition",
            hint="correct the key, or leave the record out: other output may stand in the log "
            "on lines without the marker",
        )


def _counts(run: RunLog, known: Mapping[str, EventRule], misspelt: set[str]) -> Iterator[Finding]:
    may_lack_blocks = run.status == STATUS_ABORTED  # it may have ended in the first block
    second = _second_run(run)
    if second is not None:
        yield make_finding(
            run.path,
            second.line,
            "T2.second_run",
            "a second run begins here",
            expected="one run for each file",
            got=f"{format_value(second.key)} again, first on line {run.all(second.key)[0].line}",
            hint="write the log of each run to a file of its own, result_0.txt, result_1.txt …",
        )
        return
    timed = run.all("run_start")[0].line if run.all("run_start") else math.inf
    for key, asked in known.items():
        events = run.all(key)
        again = events[1:2] if asked.count != "at least once" else ()
        if again and not (run.grows and again[0].line > timed):  # where it may be another run's
            yield make_finding(
                run.path,
                again[0].line,
                "T2.repeated",
                f"{key} is there {len(events):,} times, first on line {events[0].line}",
                expected=f"{key} {asked.count}",
                hint="write it once, from one rank; the log of each run is a file of its own",
            )
        if events or key in misspelt or asked.count == "at most once":
            continue
        is_of_block = asked.phase is Phase.TIMED and key != "run_start"
        if key == "run_stop" or (is_of_block and may_lack_blocks):
            continue  # T7 tells of a run that did not end
        yield make_finding(
            run.path,
            end_of_phase(run, asked.phase),
            "T2.missing",
            f"{key} is missing ({asked.meaning})",
            expected=f"{key} {asked.count}, {WHERE[asked.phase]}",
            hint=f"write the event {key} there",
        )


def _second_run(run: RunLog) -> Event | None:
    """The first record of another run in the same file, or None: one that is there once more after
    run_stop or, where the first run was killed, after a run_start that is not the last one.
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


_ONCE_EARLY = {
    key
    for key, asked in EVENTS["train"].items()
    if asked.count == "once" and asked.phase < Phase.TIMED
}

WHERE = {
    Phase.IDENTITY: "before init_start",
    Phase.INIT: "between init_start and init_stop",
    Phase.TIMED: "between run_start and run_stop",
    Phase.AFTER: "after run_stop",
}


def end_of_phase(run: RunLog, phase: Phase) -> int | None:
    """The line of the record that closes a phase: where something missing was noticed."""
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


def _shapes(run: RunLog, known: Mapping[str, EventRule]) -> Iterator[Finding]:
    """What is wrong with known records; the same mistake is told once, with its count."""
    broken_lines = {problem.line for problem in run.problems}
    mistakes: dict[tuple[str, str, str], list[Finding]] = {}
    for event in run.events:
        if event.key in known and event.line not in broken_lines:
            for finding in _shape(run, event, known[event.key]):
                mistake = (event.key, finding.code, finding.expected)
                mistakes.setdefault(mistake, []).append(finding)
    for same in mistakes.values():
        times = f" (in {len(same):,} records)" if len(same) > 1 else ""
        yield replace(same[0], message=same[0].message + times)


def _shape(run: RunLog, event: Event, asked: EventRule) -> Iterator[Finding]:
    """Event type, type of the value, and the metadata of one record."""
    if event.event_type in EVENT_TYPES and event.event_type != asked.event_type:
        yield make_finding(
            run.path,
            event.line,
            "T2.event_type",
            f"{event.key} has the wrong event_type",
            expected=asked.event_type,
            got=event.event_type,
            hint="use mllog's start() and end() for intervals, event() for points in time",
        )
    allowed = CHOICES.get(event.key)
    fits = has_type(event.value, asked.value) and (allowed is None or event.value in allowed)
    if not fits and event.key != "cache_clear":  # T6 judges that value
        yield make_finding(
            run.path,
            event.line,
            "T2.value",
            f"{event.key} has a wrong value",
            expected=_one_of(allowed) if allowed else asked.value,
            got=format_value(event.value),
            hint=f"{event.key} is {asked.meaning}",
        )
    wrong = [name for name in asked.metadata if not _metadata_fits(event, name)]
    if wrong:
        yield make_finding(
            run.path,
            event.line,
            "T2.metadata",
            f"{event.key} has wrong or missing metadata: {', '.join(wrong)}",
            expected=", ".join(f"{name} ({_asked_of_metadata(name)})" for name in wrong),
            got=", ".join(
                format_value(event.metadata[name]) if name in event.metadata else "nothing"
                for name in wrong
            ),
            hint=f"give every {event.key} the metadata {', '.join(asked.metadata)}",
        )


def _implementation(run: RunLog) -> Iterator[Finding]:
    """The value of ``implementation`` holds what a reader asks for beside a time."""
    event = run.first("implementation")
    if event is None or not isinstance(event.value, Mapping):
        return
    wrong = [
        name
        for name, asked in IMPLEMENTATION_TYPES.items()
        if not has_type(event.value.get(name), asked)
    ]
    if wrong:
        yield make_finding(
            run.path,
            event.line,
            "T2.implementation",
            f"implementation has wrong or missing fields: {', '.join(wrong)}",
            expected=", ".join(f"{name} ({IMPLEMENTATION_TYPES[name]})" for name in wrong),
            got=", ".join(
                format_value(event.value[name]) if name in event.value else "nothing"
                for name in wrong
            ),
            hint=f"give its value the fields {', '.join(IMPLEMENTATION_TYPES)}; "
            "others may stand beside them",
        )


def _metadata_fits(event: Event, name: str) -> bool:
    value, allowed = event.metadata.get(name), CHOICES.get(name)
    return has_type(value, METADATA_TYPES[name]) and (allowed is None or value in allowed)


def _asked_of_metadata(name: str) -> str:
    return _one_of(CHOICES[name]) if name in CHOICES else METADATA_TYPES[name]


def _one_of(allowed: tuple[str, ...]) -> str:
    return " or ".join(f'"{word}"' for word in allowed)


@lru_cache(maxsize=1)  # T3, T4 and the rules of the timeline ask, log by log
def definition_if_whole(run: RunLog, place: Place) -> Definition | None:
    """The definition of a log that is whole, so that its course can be judged."""
    definition = definition_of(run, place)
    return definition if definition and is_whole(run, definition) else None


def is_whole(run: RunLog, definition: Definition) -> bool:
    """True when every event that gives a log its structure is there and well formed.

    Order, cadence and quality can be judged only then; what is missing is T1's, T2's or T7's.
    """
    if run.has_lost_records or run.first("init_aborted") is not None or _second_run(run):
        return False
    may_lack_blocks = run.status == STATUS_ABORTED
    known = EVENTS[definition.kind]
    for key, asked in known.items():
        count = len(run.all(key))
        is_of_block = asked.phase is Phase.TIMED and key not in ("run_start", "run_stop")
        if may_lack_blocks and is_of_block and not count:
            continue
        if asked.count == "once" and asked.phase is Phase.TIMED and count != 1:
            return False
        if key in ("init_start", "init_stop") and count != 1:
            return False
        if asked.count == "at least once" and not count:
            return False
    start = run.first("run_start")
    assert start is not None
    for event in run.events:
        asked_of = known.get(event.key)
        if asked_of is None:
            if event.line > start.line and event.key not in definition.hyperparameters:
                return False  # perhaps a misspelt block_stop
        elif asked_of.phase is Phase.TIMED and any(_shape(run, event, asked_of)):
            return False
    return True


@rule("T5", Needs.RECORDS)
def finite_values(run: RunLog, place: Place) -> Iterator[Finding]:
    """No number of the log is NaN or infinite."""
    if not run.not_finite:
        return
    for event in (event for event in run.events if event.line in run.not_finite):
        for name, part in (("value", event.value), ("metadata", event.metadata)):
            where = _not_finite(part, name)
            if where:
                yield make_finding(
                    run.path,
                    event.line,
                    "T5.not_finite",
                    f"{where[0]} of {format_value(event.key)} is not finite",
                    got=str(where[1]),
                    hint="end the run as aborted when its loss or quality is not finite, "
                    "and say so in the reason instead of the number",
                )


def _not_finite(value: Any, name: str) -> tuple[str, float] | None:
    """Name and value of the first number that is not finite. The parser bounds the nesting."""
    if isinstance(value, float):
        return None if math.isfinite(value) else (name, value)
    if isinstance(value, Mapping):
        inner = ((f"{name}.{format_value(key)[1:-1][:60]}", item) for key, item in value.items())
    elif isinstance(value, list):
        inner = ((f"{name}[{i}]", item) for i, item in enumerate(value))
    else:
        return None
    return next(filter(None, (_not_finite(item, inner_name) for inner_name, item in inner)), None)
