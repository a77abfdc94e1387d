"""T3: the events of a log follow each other in order."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any

from cepheid.compliance.checks.log.events import describe_phase, find_whole_definition
from cepheid.compliance.checks.registry import Needs, Place, rule
from cepheid.compliance.finding import Finding, breach, format_value
from cepheid.compliance.read.log.records import Event
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules import rounds
from cepheid.rules.definition import Definition
from cepheid.rules.events import EVENTS, STATUS_ABORTED, TABLE, Phase


@rule("T3", Needs.RECORDS)
def check_order(run: RunLog, place: Place) -> Iterator[Finding]:
    """Check that phases, blocks and evaluations follow each other in order (T3)."""
    if rounds.load(place.round).is_mlperf:  # M4 and M7 check the rest of the order
        yield from _check_end(run)
    elif definition := find_whole_definition(run, place):
        out_of_place = list(_check_phases(run, definition))
        out_of_place += _check_turns(run, TABLE["turns"][definition.kind])
        yield from out_of_place
        if not out_of_place:  # otherwise run_stop itself may stand too early
            yield from _check_end(run)


_AFTER = {
    key for known in EVENTS.values() for key, rule in known.items() if rule.phase is Phase.AFTER
}


def _check_end(run: RunLog) -> Iterator[Finding]:
    stop = run.first("run_stop")
    if stop is None:
        return
    first_after = bisect_right(run.events, stop.line, key=attrgetter("line"))
    records = len(run.events) - first_after
    for key in _AFTER & run.by_key.keys():
        records -= sum(event.line > stop.line for event in run.by_key[key])
    if records:
        after = next(event for event in run.events[first_after:] if event.key not in _AFTER)
        yield breach(
            run, after, "T3.after_run_stop", key=format_value(after.key), records=records,
            plural="" if records == 1 else "s", line=stop.line,
        )  # fmt: skip


def _check_phases(run: RunLog, definition: Definition) -> Iterator[Finding]:
    """Report the first record that stands outside its phase; most others follow from it."""
    doors = [run.all(key)[0].line for key in ("init_start", "init_stop", "run_start")]
    init_start, init_stop, run_start = doors
    known, stop = EVENTS[definition.kind], run.first("run_stop")
    if not init_start < init_stop < run_start:
        yield breach(
            run, run_start if run_start < init_stop else init_stop, "T3.phase_order",
            init_start=init_start, init_stop=init_stop, run_start=run_start,
        )  # fmt: skip
        return
    for event in run.events:
        if event.key in known:
            phase = known[event.key].phase
        elif event.key in definition.hyperparameters:
            phase = Phase.INIT
        else:
            continue
        stands = (
            event.line <= init_start if event.key == "init_start" else event.line < init_start,
            init_start <= event.line <= init_stop,
            run_start <= event.line,
            stop is not None and stop.line < event.line,
        )
        if not stands[phase]:
            yield breach(
                run, event, "T3.outside_phase", phase=describe_phase(event.key, Phase(phase)),
                place=_describe_place(event.line, init_start, init_stop, run_start, stop),
            )  # fmt: skip
            return


def _describe_place(
    line: int, init_start: int, init_stop: int, run_start: int, stop: Event | None
) -> str:
    if line < init_start:
        return "before init_start"
    if line < init_stop:
        return "between init_start and init_stop"
    if line < run_start:
        return "between init_stop and run_start"
    return "after run_stop" if stop and line > stop.line else "after run_start"


def _check_turns(run: RunLog, turns: Mapping[str, Any]) -> Iterator[Finding]:
    """Report the first event out of turn in each block; the next block_start begins anew.

    ``turns`` are the states of the timed part, from ``begin`` to ``end``: ``of`` holds the state
    that each event requires and the one that it leads to, ``anew`` begins a new turn.
    """
    begin, end, anew, of = (turns[name] for name in ("begin", "end", "anew", "of"))
    state, is_reported, last_line = begin, False, 0
    for event in run.events:
        if event.key in of:
            required, leads_to = of[event.key]
            if event.key == anew and state == begin:
                is_reported = False
            if state != required and not is_reported:
                is_reported = True
                yield breach(
                    run, event, "T3.out_of_turn",
                    case="" if anew == "block_start" else "generate", required=required,
                    state=state, since=f" (line {last_line})" if last_line else "",
                )  # fmt: skip
            state, last_line = leads_to, event.line
        elif event.key == "run_stop":
            may_be_open = run.status == STATUS_ABORTED  # the run may have failed anywhere
            if state != end and not may_be_open and not is_reported:
                yield breach(run, event, "T3.open_interval", state=state, line=last_line)
            return
