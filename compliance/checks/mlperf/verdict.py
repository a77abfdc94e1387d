"""What mlcommons' checker finds in a log, by the rule files of its round.

The course of ``mlp_compliance.py`` is followed where it decides a verdict: files are judged in the
order in which rules ask for them, a later file that names a key replaces what earlier ones found
about it, and a key of ``submission_`` is judged once in each file.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, repeat
from operator import attrgetter
from typing import Any, Literal

from msgspec import structs

from cepheid.compliance.finding import escape, format_value
from cepheid.compliance.read.log.records import Event
from cepheid.compliance.read.log.runlog import EventsByKey, RunLog, group
from cepheid.rules.events import is_number
from cepheid.rules.mlperf.expressions import Filter, Statements
from cepheid.rules.mlperf.keys import Check, RuleFile
from cepheid.rules.mlperf.rule_files import JOINED, METRIC, RuleSet

EVALUATION = "eval_accuracy"
FILES_MAX = 16  # judged for one log; the deepest round asks for five

Kind = Literal[
    "missing",  # fewer records than the least number
    "repeated",  # more than one record, with different values
    "equal",  # more than one record, all with the same value: no breach for mlcommons
    "value",  # a record does not satisfy a condition
    "never",  # no record satisfies the condition that one must
    "end",  # the log as a whole does not satisfy a condition
    "unreadable",  # a record has not what the rules read from it
    "no_rules",  # there is no file of rules of the name that the log leads to
]


@dataclass(frozen=True)
class Breach:
    """One rule that a log breaks: where, how often, and what was there instead.

    ``keys`` are those of which one was to be there, ``least`` how many records. ``file`` is the
    file of the rule. ``at`` is the record that shows it: the first that is wrong, or the last of
    those of which none is right. ``first_line`` is that of the first record of the key.
    """

    kind: Kind
    keys: tuple[str, ...]
    file: str
    check: Check | None = None
    at: Event | None = None
    times: int = 1
    least: int = 1
    got: str = ""
    first_line: int = 0


@dataclass
class _Course:
    """What has been found so far: about keys, which later files may replace, and for good.

    Records that break the same rule are one breach, with their number beside it.
    """

    about_keys: dict[str, dict[tuple[Kind, str], tuple[Breach, int]]] = field(default_factory=dict)
    for_good: list[Breach] = field(default_factory=list)
    files: list[str] = field(default_factory=list)  # to judge by, the next one first

    def add(self, key: str, kind: Kind, check: Check | None, make: Callable[[], Breach]) -> None:
        """Add what was found about a key."""
        found = self.about_keys.setdefault(key, {})
        about = kind, check.text if check else ""
        first, times = found.get(about) or (make(), 0)
        found[about] = first, times + 1

    def list_all(self) -> Iterator[Breach]:
        """Yield all that was found."""
        for found in self.about_keys.values():
            for breach, times in found.values():
                yield replace(breach, times=times) if times > 1 else breach
        yield from self.for_good


def find_breaches(run: RunLog, rules: RuleSet) -> tuple[Breach, ...]:
    """Return all rules of a round that a log breaks; empty where mlcommons' checker passes it.

    Records that could not be read are the matter of rule T1. Raises UserError for a rule that is
    not supported.
    """
    course = _Course(files=[rules.first_file])
    events: Sequence[Event] = run.events
    by_key = run.by_key
    # records that share a line are read with care, which notes what stands between them
    are_apart = not any(each.kind in ("place", "around") for each in run.other_problems)
    for _ in range(FILES_MAX):
        if not course.files:
            break
        name = course.files.pop(0)
        file = rules.read(name)
        if file is None:
            course.for_good.append(Breach("no_rules", (), name))
        else:
            if file.joins:
                events = [*events, *_join_metrics(run, file.joins)]
                by_key, are_apart = group(events), False
            _judge_by_file(file, events, by_key, are_apart, course)
    else:
        course.for_good.append(Breach("no_rules", (), f"more than {FILES_MAX} files"))
    return tuple(course.list_all())


_get_line = attrgetter("line")
FEW = 4  # records of an acting key for each that is passed over: then they are not sorted out


def _judge_by_file(
    file: RuleFile, events: Sequence[Event], by_key: EventsByKey, are_apart: bool, course: _Course
) -> None:
    """Judge by one file; ``are_apart`` says that the lines of records tell their order."""
    state: dict[str, Any] = {}
    _act(file, file.begin, state, course)
    if course.about_keys:
        for key in course.about_keys.keys() & file.keys:
            del course.about_keys[key]
    satisfied: set[str] = set()
    # There may be 100,000 records, and nearly all are as they should be. Keys whose records are
    # judged by themselves are asked for as a whole, and what is wrong with a record of another key
    # only where ``all_hold`` says no.
    filters = file.filters
    acting = {
        key: steps
        for key, steps in file.acting.items()
        if key in by_key and not (key in filters and _are_fine(filters[key], by_key[key]))
    }
    enqueue = course.files.append
    of_acting = [by_key[key] for key in acting]
    if are_apart and FEW * sum(map(len, of_acting)) < len(events):
        events = sorted(chain.from_iterable(of_acting), key=_get_line)
    for event in events:
        key = event.key
        if key not in acting:
            continue
        is_judged_once, before, all_hold, after, of_first, some = acting[key]
        is_first = (is_judged_once or of_first) and event is by_key[key][0]
        if is_first or not is_judged_once:
            try:
                if before:
                    before(state, event.value, event.metadata, event, enqueue)
            except Exception as error:
                _refuse(file, event, error, course)
            try:
                is_fine = not all_hold or all_hold(state, event.value, event.metadata, event)
            except Exception:
                is_fine = False
            if not is_fine:
                _check(file, file.keys[key].checks, event, state, course)
            try:
                if after:
                    after(state, event.value, event.metadata, event, enqueue)
            except Exception as error:
                _refuse(file, event, error, course)
        if is_first and of_first:
            _check(file, of_first, event, state, course)
        if some and _satisfies(file, some, event, state, course):
            satisfied.add(key)
    _count(file, by_key, course)
    for key, some in file.some:
        if key in acting and key not in satisfied:
            last, times = by_key[key][-1], len(by_key[key])
            got = format_value(last.value)
            course.for_good.append(Breach("never", (key,), file.name, some, last, times, got=got))
    _judge_end(file, state, course)


def _act(
    file: RuleFile, statements: Statements | None, state: dict[str, Any], course: _Course
) -> None:
    """Let statements act that belong to no record, and note where they fail."""
    try:
        if statements:
            statements(state, None, None, None, course.files.append)
    except Exception as error:
        got = escape(str(error)[:80])
        course.for_good.append(Breach("unreadable", ("the log as a whole",), file.name, got=got))


def _are_fine(find_broken: Filter, events: Sequence[Event]) -> bool:
    """Return whether all records satisfy what is asked of each by itself."""
    try:
        return not find_broken(events)
    except Exception:  # for example of a text: which one it is, is asked in order
        return False


def _check(
    file: RuleFile, checks: Sequence[Check], event: Event, state: dict[str, Any], course: _Course
) -> None:
    for check in checks:
        if not _holds(check, state, event):
            course.add(event.key, "value", check, partial(_find_value, file, check, state, event))


def _find_value(file: RuleFile, check: Check, state: Mapping[str, Any], event: Event) -> Breach:
    got = ", ".join(_list_read(check, state, event)) or format_value(event.value)
    return Breach("value", (event.key,), file.name, check, event, got=got)


def _satisfies(
    file: RuleFile, some: Check, event: Event, state: dict[str, Any], course: _Course
) -> bool:
    """Return whether a record is as one of its key must be; all of them must be comparable."""
    try:
        return bool(some.holds(state, event.value, event.metadata, event))
    except Exception as error:
        _refuse(file, event, error, course)
        return False


def _refuse(file: RuleFile, event: Event, error: Exception, course: _Course) -> None:
    """Note that rules cannot read a record; mlcommons' checker ends with a traceback there."""
    got = escape(f"{type(error).__name__}: {error}"[:80])
    got += f" with the value {format_value(event.value)}"
    found = Breach("unreadable", (event.key,), file.name, at=event, got=got)
    course.add(event.key, "unreadable", None, lambda: found)


def _holds(check: Check, state: dict[str, Any], event: Event | None) -> bool:
    """Return whether a condition holds; one that fails, for example on a text, does not."""
    value, metadata = (event.value, event.metadata) if event else (None, None)
    try:
        return bool(check.holds(state, value, metadata, event))
    except Exception:
        return False


def _list_read(check: Check, state: Mapping[str, Any], event: Event | None) -> Iterator[str]:
    for source, name in check.reads:
        if source == "s":
            yield f"{name} {format_value(state.get(name))}"
        elif source == "metadata" and event:
            value = event.metadata.get(name) if name else strip_source(event.metadata)
            yield f"{name} {format_value(value)}".strip()
        elif source == "value" and event:
            part = event.value.get(name) if name and isinstance(event.value, dict) else event.value
            yield f"{name} {format_value(part)}".strip()


def strip_source(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return metadata without the place of the code that wrote the record."""
    return {name: value for name, value in metadata.items() if name not in ("file", "lineno")}


def _count(file: RuleFile, by_key: EventsByKey, course: _Course) -> None:
    """Note of which keys there are too few records, or too many."""
    either: dict[frozenset[str], tuple[str, ...]] = {}
    is_usual = {1}.issuperset(map(len, map(by_key.get, file.once, repeat(()))))
    for key, rules in file.counted_otherwise if is_usual else file.counted:
        of_key = by_key.get(key, ())
        if rules.or_else:
            keys = (key, *rules.or_else)
            # keys that the file does not name count for nothing
            if not by_key.keys() & keys & file.keys.keys():
                either.setdefault(frozenset(keys), keys)
        elif rules.count == "once" and len(of_key) > 1:
            found = _find_repeated(file, key, of_key)
            course.about_keys.setdefault(key, {})[found.kind, ""] = found, found.times
        elif len(of_key) < rules.least:
            found = Breach("missing", (key,), file.name, least=rules.least)
            course.about_keys.setdefault(key, {})["missing", ""] = found, 1
    for keys in either.values():
        course.for_good.append(Breach("missing", keys, file.name))


def _find_repeated(file: RuleFile, key: str, events: Sequence[Event]) -> Breach:
    first, times = events[0], len(events)
    odd = next((event for event in events if event.value != first.value), None)
    got = format_value(first.value) + (f" and {format_value(odd.value)}" if odd else "")
    return Breach(
        "repeated" if odd else "equal", (key,), file.name, None, odd or events[1], times,
        got=got, first_line=first.line,
    )  # fmt: skip


def _judge_end(file: RuleFile, state: dict[str, Any], course: _Course) -> None:
    _act(file, file.before_end, state, course)
    for check in file.end:
        if not _holds(check, state, None):
            got = ", ".join(_list_read(check, state, None))
            course.for_good.append(Breach("end", (), file.name, check, got=got))


def _join_metrics(run: RunLog, by: str) -> Iterable[Event]:
    """Return a record of all metrics of an evaluation that a log has apart, such as FID and CLIP.

    Records that do not say ``by`` what they belong together are left out, so that the rule that
    asks for the joined ones tells what is missing.
    """
    joined: dict[float, Event] = {}
    for event in run.all(EVALUATION):
        count, metric = event.metadata.get(by), event.metadata.get(METRIC)
        if not is_number(count) or not isinstance(metric, str):
            continue
        if count not in joined:
            joined[count] = structs.replace(event, key=JOINED, value={by: count}, metadata={})
        made = joined[count]
        made.time_ms = max(made.time_ms, event.time_ms)
        made.value[metric] = event.value
    return joined.values()
