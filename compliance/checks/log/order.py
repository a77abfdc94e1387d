"""T3 and T4: the order of a log, by its lines and by its two clocks."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from compliance.checks.log.form import WHERE, definition_if_whole
from compliance.checks.log.pace import unexplained_times
from compliance.checks.registry import Needs, Place, make_finding, rule
from compliance.finding import Finding, format_value
from compliance.read.records import Event
from compliance.read.runlog import RunLog
from rules import rounds
from rules.definition import Definition
from rules.events import CLOCK_METADATA, EVENTS, STATUS_ABORTED, Kind, Phase

CLOCK_TOLERANCE_MS = 100.0
CLOCK_TOLERANCE_SHARE = 1e-3


@dataclass(frozen=True)
class Turns:
    """What each event of the timed part asks for and leads to, from ``begin`` to ``end``; with
    ``anew`` they begin anew."""

    begin: str
    end: str
    anew: str
    of: Mapping[str, tuple[str, str]]
    mend: str


_EVALUATION = {
    "eval_accuracy": ("in an evaluation without a result", "in an evaluation with its result"),
}
_TURNS: Mapping[Kind, Turns] = {
    "train": Turns(
        begin="after run_start or an evaluation",
        end="after run_start or an evaluation",
        anew="block_start",
        of={
            "block_start": ("after run_start or an evaluation", "in a block"),
            "block_stop": ("in a block", "after a block"),
            "eval_start": ("after a block", "in an evaluation without a result"),
            **_EVALUATION,
            "eval_stop": ("in an evaluation with its result", "after run_start or an evaluation"),
        },
        mend="write block_start, block_stop, eval_start, eval_accuracy, eval_stop, "
        "each once, for every block",
    ),
    "generate": Turns(
        begin="after run_start or a generation",
        end="after the evaluation",
        anew="generation_start",
        of={
            "generation_start": ("after run_start or a generation", "in a generation"),
            "generation_times": ("in a generation", "in a generation with its times"),
            "generation_stop": (
                "in a generation with its times",
                "after run_start or a generation",
            ),
            "eval_start": (
                "after run_start or a generation",
                "in an evaluation without a result",
            ),
            **_EVALUATION,
            "eval_stop": ("in an evaluation with its result", "after the evaluation"),
        },
        mend="write generation_start, generation_times, generation_stop, each once, for every "
        "number of images, then eval_start, eval_accuracy, eval_stop",
    ),
}


@rule("T3", Needs.RECORDS)
def order(run: RunLog, place: Place) -> Iterator[Finding]:
    """Phases follow each other, blocks and evaluations take turns, and run_stop is followed by
    nothing but what belongs there."""
    definition = definition_if_whole(run, place)
    if definition is not None:
        out_of_place = [*_phases(run, definition), *_turns(run, _TURNS[definition.kind])]
        yield from out_of_place
        if not out_of_place:  # else it may be run_stop that stands too early
            yield from _after_the_end(run)
    elif rounds.load(place.round).is_history:  # M4 and M7 judge the rest
        yield from _after_the_end(run)


def _after_the_end(run: RunLog) -> Iterator[Finding]:
    stop = run.first("run_stop")
    after = [event for event in run.events if stop and event.line > stop.line]
    after = [event for event in after if not _belongs_after(event)]
    if stop and after:
        yield make_finding(
            run.path,
            after[0].line,
            "T3.after_run_stop",
            f"{format_value(after[0].key)} follows run_stop ({len(after):,} record"
            f"{'' if len(after) == 1 else 's'} in all)",
            expected=f"nothing after run_stop on line {stop.line}",
            hint="write what belongs to the run before run_stop, and each run to its own file",
        )


def _belongs_after(event: Event) -> bool:
    asked = EVENTS["train"].get(event.key)
    return asked is not None and asked.phase is Phase.AFTER


def _phases(run: RunLog, definition: Definition) -> Iterator[Finding]:
    """The first record that stands outside its phase; others mostly follow from it."""
    doors = [run.all(key)[0].line for key in ("init_start", "init_stop", "run_start")]
    init_start, init_stop, run_start = doors
    known, stop = EVENTS[definition.kind], run.first("run_stop")
    if not init_start < init_stop < run_start:
        yield make_finding(
            run.path,
            run_start if run_start < init_stop else init_stop,
            "T3.phase_order",
            "init_start, init_stop and run_start are not in this order",
            got=f"lines {init_start}, {init_stop}, {run_start}",
            hint="finish the initialisation before the clock starts",
        )
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
            yield make_finding(
                run.path,
                event.line,
                "T3.outside_phase",
                f"{event.key} stands outside its phase",
                expected=WHERE[phase],
                got=_found_where(event.line, init_start, init_stop, run_start, stop),
                hint="write each event in its phase; the table under T2 lists them",
            )
            return


def _found_where(
    line: int, init_start: int, init_stop: int, run_start: int, stop: Event | None
) -> str:
    if line < init_start:
        return "it before init_start"
    if line < init_stop:
        return "it between init_start and init_stop"
    if line < run_start:
        return "it between init_stop and run_start"
    return "it after run_stop" if stop and line > stop.line else "it after run_start"


def _turns(run: RunLog, turns: Turns) -> Iterator[Finding]:
    """The first break of the turns in each block; the next block_start is a new beginning."""
    state, told, last_line = turns.begin, False, 0
    for event in run.events:
        if event.key in turns.of:
            asked, leads_to = turns.of[event.key]
            if event.key == turns.anew and state == turns.begin:
                told = False
            if state != asked and not told:
                told = True
                yield make_finding(
                    run.path,
                    event.line,
                    "T3.out_of_turn",
                    f"{event.key} is out of turn",
                    expected=f"{event.key} {asked}",
                    got=f"it {state}" + (f" (line {last_line})" if last_line else ""),
                    hint=turns.mend,
                )
            state, last_line = leads_to, event.line
        elif event.key == "run_stop":
            may_be_open = run.status == STATUS_ABORTED  # the run failed where it was
            if state != turns.end and not may_be_open and not told:
                yield make_finding(
                    run.path,
                    event.line,
                    "T3.open_interval",
                    "run_stop comes while a block or an evaluation is open",
                    expected="run_stop after eval_stop",
                    got=f"it {state} (line {last_line})",
                    hint="close the evaluation before the clock stops",
                )
            return


@rule("T4", Needs.RECORDS)
def clock(run: RunLog, place: Place) -> Iterator[Finding]:
    """Neither clock steps back, both advance alike, and events account for the time they tell."""
    if not rounds.load(place.round).log.monotonic_clock:
        yield from _steps_back(run)
        return
    broken_lines = {problem.line for problem in run.problems}  # T1's
    without = [e for e in run.events if e.line not in broken_lines and _has_no_clock(e)]
    if without:
        yield make_finding(
            run.path,
            without[0].line,
            "T4.no_monotonic_ms",
            f"metadata.monotonic_ms is missing or no number in {len(without):,} of "
            f"{len(run.events):,} records",
            expected="milliseconds of a clock that is never set, in every record",
            got=_logged(without[0], CLOCK_METADATA),
            hint="add metadata.monotonic_ms, in Python time.monotonic() * 1000",
        )
    yield from _apart(run)
    if definition_if_whole(run, place):
        yield from unexplained_times(run)


def _apart(run: RunLog) -> Iterator[Finding]:
    """Where a clock steps back, or the two clocks go apart."""
    before: Event | None = None
    drift = _Drift()
    for event in run.events:
        back = _describe_step_back(before, event) if before is not None else ""
        before = event
        if back:
            yield _step_back(run, event, back)
            drift = _Drift()  # the next record begins anew: one step gives one finding
            continue
        if event.monotonic_ms is None:
            continue
        apart_ms = drift.apart_ms(event.time_ms, event.monotonic_ms)
        if apart_ms is not None:
            yield make_finding(
                run.path,
                event.line,
                "T4.clocks_apart",
                "the wall clock and the monotonic clock went apart before this record",
                expected=f"the same advance to within {CLOCK_TOLERANCE_MS:g} ms and 0.1%",
                got=f"a difference of {apart_ms:,.0f} ms",
                hint="the clock was set or the log was changed; switch off stepping of the clock "
                "(slewing is fine) and run again",
            )
            drift = _Drift()
            drift.apart_ms(event.time_ms, event.monotonic_ms)


def _steps_back(run: RunLog) -> Iterator[Finding]:
    """All steps of the only clock as one finding: where ranks share a log there may be many."""
    times_ms = [event.time_ms for event in run.events]
    if times_ms == sorted(times_ms):
        return
    steps = [
        (event, before.time_ms - event.time_ms)
        for before, event in zip(run.events, run.events[1:], strict=False)
        if event.time_ms < before.time_ms
    ]
    furthest = max(milliseconds for _, milliseconds in steps)
    times = "" if len(steps) == 1 else f" {len(steps):,} times, at most"
    yield _step_back(run, steps[0][0], f"time_ms steps back{times} by {furthest:,.0f} ms")


def _step_back(run: RunLog, event: Event, message: str) -> Finding:
    return make_finding(
        run.path,
        event.line,
        "T4.step_back",
        message,
        expected="a time that is not before the record above",
        hint="write records in order from one process, and never change the log; "
        "if the machine's clock was set during the run, run again",
    )


def _logged(event: Event, name: str) -> str:
    return format_value(event.metadata[name]) if name in event.metadata else "nothing"


def _has_no_clock(event: Event) -> bool:
    logged = event.metadata.get(CLOCK_METADATA)
    if isinstance(logged, float) and not math.isfinite(logged):
        return False  # T5 tells
    return event.monotonic_ms is None or event.monotonic_ms < 0


def _describe_step_back(before: Event, event: Event) -> str:
    if event.time_ms < before.time_ms:
        return f"time_ms steps back by {before.time_ms - event.time_ms:,.0f} ms"
    if event.monotonic_ms is not None and before.monotonic_ms is not None:
        back_ms = before.monotonic_ms - event.monotonic_ms
        if back_ms > 0:
            return f"metadata.monotonic_ms steps back by {back_ms:,.3f} ms"
    return ""


class _Drift:
    """Compares every record with all before it in one pass.

    With o = wall − monotonic, |o_j − o_i| <= tolerance + share · (m_j − m_i) for all i < j holds
    exactly when o − share · m never rises, and o + share · m never falls, by more than the
    tolerance against its lowest, or highest, value so far.
    """

    def __init__(self) -> None:
        self.lowest = math.inf
        self.highest = -math.inf

    def apart_ms(self, wall_ms: float, monotonic_ms: float) -> float | None:
        """How far the clocks are apart beyond the growing share, or None within the tolerance."""
        offset = wall_ms - monotonic_ms
        falling = offset - CLOCK_TOLERANCE_SHARE * monotonic_ms
        rising = offset + CLOCK_TOLERANCE_SHARE * monotonic_ms
        self.lowest = min(self.lowest, falling)
        self.highest = max(self.highest, rising)
        apart = max(falling - self.lowest, self.highest - rising)
        return apart if apart > CLOCK_TOLERANCE_MS else None
