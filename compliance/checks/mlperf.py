"""M1 to M8: what the rounds of MLPerf ask. The requirements are data of the round, judged here."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from compliance.checks.registry import Needs, Place, make_finding, rule
from compliance.finding import Finding, format_value
from compliance.read.logs import ResultLogs
from compliance.read.records import Event
from compliance.read.runlog import RunLog
from rules import rounds
from rules.definition import Definition
from rules.events import is_number
from rules.requirements import Metadata, Requirement, Requirements
from rules.rounds import Round, RoundBenchmark


def _asked_of(run: RunLog, place: Place) -> Sequence[tuple[Requirement, Requirements]]:
    """The requirements of the round that apply to a log by what the log says, and why they do."""
    return _asked_in(run, place.round)


@lru_cache(maxsize=1)  # every rule asks, log by log
def _asked_in(run: RunLog, round_name: str) -> Sequence[tuple[Requirement, Requirements]]:
    judged_in = rounds.load(round_name)
    return [
        (asked, group)
        for group in judged_in.requirements
        if all(_says(run, key, value, judged_in) for key, value in group.when.items())
        and not any(_says(run, key, value, judged_in) for key, value in group.unless.items())
        for asked in group.of_keys
    ]


def _says(run: RunLog, key: str, value: object, judged_in: Round) -> bool:
    """Whether some record of a key has that value; a benchmark may go by another name."""
    if key == "submission_benchmark":
        known = judged_in.benchmark(run.text(key))
        return known is not None and known.name == value
    return any(event.value == value for event in run.all(key))


@rule("M1", Needs.RECORDS)
def counts(run: RunLog, place: Place) -> Iterator[Finding]:
    """Every record that is asked for is there, as often as asked."""
    told: set[frozenset[str]] = set()
    for asked, why in _asked_of(run, place):
        events = run.all(asked.key)
        if asked.count is None or (len(events) == 1 and asked.count != "never"):
            continue
        either = frozenset((asked.key, *asked.or_else))
        if either in told:
            continue
        if asked.count == "never":
            if events:
                told.add(either)
                yield _too_many(run, asked, why, events)
        elif not any(run.all(key) for key in either):
            told.add(either)
            if asked.key != "run_stop":  # T17 tells of a run that did not end
                yield _missing(run, asked, why)
        elif len(events) > 1 and asked.count != "at least once":
            told.add(either)
            yield _too_many(run, asked, why, events)


def _missing(run: RunLog, asked: Requirement, why: Requirements) -> Finding:
    return make_finding(
        run.path,
        None,
        "M1.missing",
        " or ".join((asked.key, *asked.or_else)) + " is missing",
        expected=f"{asked.key} {why}{asked.count}",
        hint=f"log {asked.key} with mllog when it is known or happens; run again",
    )


def _too_many(
    run: RunLog, asked: Requirement, why: Requirements, events: tuple[Event, ...]
) -> Finding:
    """Records that repeat the same value are a warning only, unless none may be repeated."""
    same = all(event.value == events[0].value for event in events)
    first, second = events[0], events[:2][-1]
    odd = next((event for event in events if event.value != first.value), second)
    if asked.count == "never":
        code, line = "M1.not_allowed", first.line
        message = f"{asked.key} does not belong here"
    else:
        message = f"{asked.key} is there {len(events):,} times, first on line {first.line}"
        code, line = "M1.repeated", odd.line
    return make_finding(
        run.path,
        line,
        code,
        message,
        expected=f"{asked.key} {why}{asked.count}",
        got=f"{format_value(first.value)}" + ("" if same else f" and {format_value(odd.value)}"),
        hint="log it once, from one rank, with the value that was used",
        severity="warning" if same and asked.count == "once" else "error",
    )


@rule("M2", Needs.RECORDS)
def values(run: RunLog, place: Place) -> Iterator[Finding]:
    """Every value is as the round asks."""
    for asked, why in _asked_of(run, place):
        if asked.value is None:
            continue
        wrong = [event for event in run.all(asked.key) if not asked.value.holds(event.value)]
        if wrong:
            yield make_finding(
                run.path,
                wrong[0].line,
                "M2.value",
                f"{asked.key} has a value that the round does not allow{_in_records(wrong)}",
                expected=f"{why}a value {asked.value}",
                got=format_value(wrong[0].value),
                hint="run again with an allowed value, and log the one that was used",
            )


@rule("M3", Needs.RECORDS)
def metadata(run: RunLog, place: Place) -> Iterator[Finding]:
    """Records tell in their metadata what they belong to."""
    for asked, _ in _asked_of(run, place):
        if asked.metadata is None:
            continue
        wrong = _lacking(asked.metadata, run.all(asked.key))
        if wrong:
            event, lacks = wrong[0]
            yield make_finding(
                run.path,
                event.line,
                "M3.metadata",
                f"{asked.key} has wrong or missing metadata{_in_records([e for e, _ in wrong])}",
                expected=lacks,
                got=_told(event),
                hint=f"give every {asked.key} these fields of metadata",
            )


def _lacking(needs: Metadata, events: Sequence[Event]) -> list[tuple[Event, str]]:
    """The records whose metadata are not as asked, and what they should have."""
    lacks_of: dict[tuple[str, ...], str] = {}  # by fields: most records of a log have the same
    wrong = []
    for event in events:
        fields = tuple(event.metadata)
        if fields not in lacks_of:
            lacks_of[fields] = _lacking_fields(needs, fields)
        lacks = lacks_of[fields] or (needs.values and _wrong_value(needs, event.metadata))
        if lacks:
            wrong.append((event, lacks))
    return wrong


def _lacking_fields(needs: Metadata, fields: Sequence[str]) -> str:
    missing = [name for name in needs.has if name not in fields]
    for name, also in needs.having.items():
        if name in fields:
            missing += [other for other in also if other not in fields]
    if not missing and needs.has_one_of and not any(name in fields for name in needs.has_one_of):
        return " or ".join(needs.has_one_of)
    return ", ".join(missing)


def _wrong_value(needs: Metadata, found: Mapping[str, Any]) -> str:
    for name, condition in needs.values.items():
        if name in found and not condition.holds(found[name]):
            return f"{name} {condition}"
    return ""


def _told(event: Event) -> str:
    """The metadata of a record but for its source."""
    return format_value({k: v for k, v in event.metadata.items() if k not in ("file", "lineno")})


def _in_records(events: list[Event]) -> str:
    return f" (in {len(events):,} records)" if len(events) > 1 else ""


@rule("M4", Needs.RECORDS)
def places(run: RunLog, place: Place) -> Iterator[Finding]:
    """What must come first stands before, by position in the log."""
    for asked, _ in _asked_of(run, place):
        events = run.all(asked.key)
        if not events:
            continue
        for key in asked.after:
            other = run.first(key)
            if other is None or other.line > events[0].line:
                yield _misplaced(run, events[0], "after", key)
        for key in asked.not_after:
            other = run.first(key)
            if other is not None and other.line < events[-1].line:
                yield _misplaced(run, events[-1], "before", key)


def _misplaced(run: RunLog, event: Event, where: str, key: str) -> Finding:
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
def times(run: RunLog, place: Place) -> Iterator[Finding]:
    """Initialisation ends in time, counted from its first start, and a run takes some time."""
    for asked, why in _asked_of(run, place):
        event = run.first(asked.key)
        if event is None:
            continue
        for key in asked.later_than:
            other = run.first(key)
            if other is not None and event.time_ms <= other.time_ms:
                yield make_finding(
                    run.path,
                    event.line,
                    "M5.no_time",
                    f"{asked.key} is not later than {key}",
                    expected=f"a time after that of line {other.line}",
                    got=f"{(event.time_ms - other.time_ms) / 1000:,.3f} seconds after it",
                    hint="write each record when it happens, with the clock of that moment",
                )
        if asked.within is not None and run.all(asked.within.since):
            since_ms = min(started.time_ms for started in run.all(asked.within.since))
            minutes = (event.time_ms - since_ms) / 60_000
            if minutes >= asked.within.minutes:
                yield make_finding(
                    run.path,
                    event.line,
                    "M5.too_late",
                    f"{asked.key} comes too late",
                    expected=f"{why}less than {asked.within.minutes:g} minutes "
                    f"after {asked.within.since}",
                    got=f"{minutes:.1f} minutes",
                    hint="compile less, or keep what was compiled",
                )


@rule("M6", Needs.RECORDS)
def target(run: RunLog, place: Place) -> Iterator[Finding]:
    """Qualities are numbers, and a run that is called a success reached the target."""
    for asked, why in _asked_of(run, place):
        events = run.all(asked.key)
        if asked.some_value is None or not events:
            continue
        wrong = [event for event in events if not is_number(event.value)]
        if wrong:
            yield make_finding(
                run.path,
                wrong[0].line,
                "M6.not_a_number",
                f"{asked.key} is no number{_in_records(wrong)}",
                expected=f"{why}a number",
                got=format_value(wrong[0].value),
                hint="log what the evaluation found",
            )
        elif run.converged and not any(asked.some_value.holds(event.value) for event in events):
            numbers = [event.value for event in events]
            yield make_finding(
                run.path,
                events[-1].line,
                "M6.false_success",
                f"no {asked.key} reaches the target, and the run is called a success",
                expected=f"{why}a value {asked.some_value}",
                got=f"{format_value(numbers[-1])} at the last of {len(numbers):,}",
                hint="train until the target is reached, or end the run as aborted",
            )


@rule("M7", Needs.RECORDS)
def turns(run: RunLog, place: Place) -> Iterator[Finding]:
    """Epochs, evaluations and blocks take turns and are numbered on, as v0.6 asks."""
    course = _Course()
    wrong: dict[str, list[Event]] = {}
    for event in run.events:
        step = getattr(course, event.key, None) if event.key in _Course.KEYS else None
        if step is not None and not step(event.metadata):
            wrong.setdefault(event.key, []).append(event)
    for key, events in wrong.items():
        yield make_finding(
            run.path,
            events[0].line,
            "M7.out_of_turn",
            f"{key} is out of turn{_in_records(events)}",
            expected=_Course.KEYS[key],
            got=_told(events[0]),
            hint="open and close blocks, epochs and evaluations in turn, between run_start and "
            "run_stop, and number epochs 1, 2, 3 …",
        )


class _Course:
    """Where a v0.6 run stands. Each method is told of a record and says whether it was in turn."""

    KEYS: Mapping[str, str] = {
        "run_start": "one run_start",
        "run_stop": "run_stop while no evaluation is open",
        "epoch_start": "the epoch after the last one, none open, between run_start and run_stop",
        "epoch_stop": "the epoch that is open",
        "eval_start": "a later epoch than the last evaluated one, already begun, no evaluation "
        "open or without a result, between run_start and run_stop",
        "eval_stop": "the evaluation that is open",
        "eval_accuracy": "the epoch of the last eval_start",
        "block_start": "the next epoch, or within one the last evaluated, no block open, "
        "between run_start and run_stop",
        "block_stop": "the block that is open, after the result of its evaluation",
    }

    def __init__(self) -> None:
        self.running = self.stopped = False
        self.in_epoch = self.in_eval = self.in_block = False
        self.has_accuracy = True
        self.epoch: Any = 0
        self.evaluated: Any = 0
        self.block: Any = None

    def run_start(self, metadata: Mapping[str, Any]) -> bool:
        self.running = True
        return True

    def run_stop(self, metadata: Mapping[str, Any]) -> bool:
        self.stopped = True
        return not self.in_eval

    def epoch_start(self, metadata: Mapping[str, Any]) -> bool:
        number = metadata.get("epoch_num")
        in_turn = self._goes_on and not self.in_epoch and _is_next(number, self.epoch)
        self.in_epoch, self.epoch = True, number
        return in_turn

    def epoch_stop(self, metadata: Mapping[str, Any]) -> bool:
        in_turn = self.in_epoch and metadata.get("epoch_num") == self.epoch
        self.in_epoch = False
        return in_turn

    def eval_start(self, metadata: Mapping[str, Any]) -> bool:
        number = metadata.get("epoch_num")
        in_turn = self._goes_on and not self.in_eval and self.has_accuracy
        in_turn = in_turn and _is_less(self.evaluated, number) and not _is_less(self.epoch, number)
        self.in_eval, self.has_accuracy, self.evaluated = True, False, number
        return in_turn

    def eval_stop(self, metadata: Mapping[str, Any]) -> bool:
        in_turn = self.in_eval and metadata.get("epoch_num") == self.evaluated
        self.in_eval = False
        return in_turn

    def eval_accuracy(self, metadata: Mapping[str, Any]) -> bool:
        self.has_accuracy = True
        return bool(metadata.get("epoch_num") == self.evaluated)

    def block_start(self, metadata: Mapping[str, Any]) -> bool:
        number = metadata.get("first_epoch_num")
        begins = number == self.evaluated if self.in_epoch else _is_next(number, self.epoch)
        in_turn = self._goes_on and not self.in_block and begins
        self.in_block, self.has_accuracy, self.block = True, True, number
        return in_turn

    def block_stop(self, metadata: Mapping[str, Any]) -> bool:
        number = metadata.get("first_epoch_num")
        in_turn = self.in_block and self.has_accuracy and number == self.block
        self.in_block = False
        return in_turn

    @property
    def _goes_on(self) -> bool:
        return self.running and not self.stopped


def _is_next(number: object, before: object) -> bool:
    return is_number(number) and is_number(before) and number == before + 1


def _is_less(first: object, second: object) -> bool:
    return is_number(first) and is_number(second) and first < second


@rule("M8", Needs.RESULT)
def number_of_runs(
    result: ResultLogs, judged_by: Definition | RoundBenchmark, place: Place
) -> Iterator[Finding]:
    """As many logs as the round asks for, whatever their numbers."""
    required, runs = judged_by.runs.required, len(result.runs)
    is_weak = result.folder.scale == "weak"  # in HPC: as many models as the submitter liked
    if place.in_result and (runs < required or (runs > required and not is_weak)):
        yield make_finding(
            result.path,
            None,
            "M8.number_of_runs",
            f"{runs} run{'' if runs == 1 else 's'} where a result of {judged_by.name} holds "
            f"{required}",
            expected=f"{required} logs named result_<k>.txt",
            got=str(runs),
            hint="put every run of the result into its folder, and nothing else",
        )
