"""S14: what the configuration and the reports of a result say is what its logs say."""

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from cepheid.compliance.checks.registry import Needs, Place, rule
from cepheid.compliance.checks.result.aside import check_belonging
from cepheid.compliance.finding import Finding, breach, encode_canonically, escape, format_value
from cepheid.compliance.read.log.runlog import RunLog, read_repetitions
from cepheid.compliance.read.logs import Attached, ResultLogs
from cepheid.compliance.read.powerlog import PowerLog
from cepheid.compliance.read.summary import measure_joules
from cepheid.rules.definition import Definition
from cepheid.rules.events import is_integer, is_number

TOLERANCE = 0.01  # a share
ASCENDING = ("min", "p50", "p99", "max")  # beginnings of names in a row, none above the next


def find_wrong_energy(
    energy: object, run: RunLog, power: PowerLog | None
) -> Iterator[tuple[str, object, object]]:
    """Yield what a report says of the energy, if the power log of the run does not say so."""
    if not isinstance(energy, dict):
        return
    joules = energy.get("joules")
    if joules is not None and power is None:
        yield "energy.joules", joules, "no power log (T23)"
    if power is None or power.problems or "none" in energy:
        return  # the readings of a meter were added to a run that measured nothing itself
    measured, seconds = measure_joules(run, power), _measure_seconds(run)
    if measured is not None and not _is_near(joules, measured):
        yield "energy.joules", joules, measured
    watts = energy.get("mean_watts")
    mean = measured / seconds if measured is not None and seconds and seconds > 0 else None
    if watts is not None and mean is not None and not _is_near(watts, mean):
        yield "energy.mean_watts", watts, mean
    named = [sensor.name for sensor in power.sensors]
    if energy.get("sensors", named) != named:
        yield "energy.sensors", energy["sensors"], named
    if energy.get("not_measured", power.not_measured) != power.not_measured:
        yield "energy.not_measured", energy["not_measured"], power.not_measured


def find_impossible_rows(tables: object, run: RunLog) -> Iterator[tuple[str, object, object]]:
    """Yield times in the rows of a report that are out of order, or not those in the log."""
    for table in tables if isinstance(tables, list) else ():
        rows = table.get("rows") if isinstance(table, dict) else None
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, dict):
                yield from _check_order(row)
                if is_integer(row.get("images")):
                    yield from _check_times(row, _find_times(run, row["images"]))


def _find_times(run: RunLog, images: int) -> tuple[float, ...] | None:
    for event in run.all("generation_times"):
        if event.metadata.get("images_count") == images:
            return read_repetitions(event)
    return None


def _check_order(row: dict[str, object]) -> Iterator[tuple[str, object, object]]:
    if sum(name.startswith(ASCENDING) for name in row) < 2:
        return
    for unit in ("", "_ms", "_seconds"):
        known = [(f"{name}{unit}", row.get(f"{name}{unit}")) for name in ASCENDING]
        named = [(name, value) for name, value in known if is_number(value)]
        for (low, smaller), (high, larger) in itertools.pairwise(named):
            if is_number(smaller) and is_number(larger) and smaller > larger:
                yield low, smaller, f"at most {larger:g}, as {high}"


def _check_times(
    row: dict[str, object], seconds: tuple[float, ...] | None
) -> Iterator[tuple[str, object, object]]:
    if not seconds:
        return
    shortest, longest = 1000 * min(seconds), 1000 * max(seconds)
    for name in ("p50_ms", "p99_ms"):
        value = row.get(name)
        lowest, highest = shortest * (1 - TOLERANCE), longest * (1 + TOLERANCE)
        if is_number(value) and not lowest <= value <= highest:
            yield name, value, f"from {shortest:g} to {longest:g} ms"
    if row.get("repetitions", len(seconds)) != len(seconds):
        yield "repetitions", row["repetitions"], len(seconds)


def _measure_seconds(run: RunLog) -> float | None:
    """Return the time of the run by the clock of its power log."""
    start, stop = run.first("run_start"), run.first("run_stop")
    if start is None or stop is None or start.monotonic_ms is None or stop.monotonic_ms is None:
        return None
    return (stop.monotonic_ms - start.monotonic_ms) / 1000


def _is_near(value: object, expected: float) -> bool:
    if not is_number(value):
        return False
    return math.isclose(value, expected, rel_tol=TOLERANCE, abs_tol=1e-6)


KEYS = {  # of a file, and the events that say the same
    "round": "submission_round",
    "benchmark": "submission_benchmark",
    "scale": "submission_scale",
    "division": "submission_division",
    "submitter": "submission_org",
    "system": "submission_platform",
    "definition_digest": "definition_digest",
    "code_digest": "code_digest",
    "task_digest": "task_digest",
    "seed": "seed",
}
EXECUTION = ("precision", "compile", "threads")
Contradiction = tuple[str, object, object]
"""What a file says about, what it says, and what the log says."""


@rule("S14", Needs.RESULT)
def check_attached(result: ResultLogs, definition: Definition, place: Place) -> Iterator[Finding]:
    """Check configuration, reports and logs that were set aside against the logs (S14)."""
    for aside in result.interrupted:
        yield from check_belonging(aside, result.runs[0])
    for attached in result.attached:
        if attached.problem:
            yield breach(attached, None, "S14.unreadable", problem=escape(attached.problem))
            continue
        if not attached.content:
            continue  # a picture, or a file that says nothing
        runs = [run for run in result.runs if attached.number in (None, run.index)]
        contradictions = (
            (run, wrong)
            for run in runs
            for wrong in _find_contradictions(attached, run, result, definition)
        )
        for run, (what, said, logged) in [*contradictions][:1]:  # one is enough to look at the file
            yield breach(
                attached,
                None,
                "S14.contradiction",
                what=escape(what)[:100],
                run=run.path.name,
                logged=format_value(logged),
                said=format_value(said),
            )


def _find_contradictions(
    attached: Attached, run: RunLog, result: ResultLogs, definition: Definition
) -> Iterator[Contradiction]:
    content = attached.content
    for key, event_key in KEYS.items():
        event = run.first(event_key)
        if key in content and event is not None and not _is_equal(content[key], event.value):
            yield key, content[key], event.value
    if attached.number is None:
        yield from _check_configuration(content, run)
        return
    if "run" in content and content["run"] != attached.number:
        yield "run", content["run"], attached.number
    power = next((log for log in result.power if log.index == attached.number), None)
    yield from find_wrong_energy(content.get("energy"), run, power)
    yield from find_impossible_rows(content.get("tables"), run)


def _check_configuration(content: Mapping[str, Any], run: RunLog) -> Iterator[Contradiction]:
    given = content.get("hyperparameters")
    for name, value in given.items() if isinstance(given, dict) else ():
        event = run.first(name)
        if event is None and not run.is_complete:
            continue  # a record that T1 misses may say it
        if event is None or not _is_equal(value, event.value):
            yield name, value, event.value if event else f"no {name}"
    how = run.value("implementation")
    used = how if isinstance(how, dict) else {}
    framework, logged = content.get("framework"), str(used.get("framework", ""))
    if used and isinstance(framework, str) and framework.casefold() not in logged.casefold():
        yield "framework", framework, logged
    wanted, execution = content.get("execution"), used.get("execution")
    if isinstance(wanted, dict) and isinstance(execution, dict):
        for name in EXECUTION:
            value = wanted.get(name, "auto")
            if value not in ("auto", execution.get(name)):
                yield f"execution.{name}", value, execution.get(name)
        own, logged_own = wanted.get("own"), execution.get("own", wanted.get("own"))
        if isinstance(own, dict) and _put_in_place_of_auto(own, logged_own) != logged_own:
            yield "execution.own", own, logged_own
    yield from _check_seeds(content.get("seeds"), run)


def _put_in_place_of_auto(asked: Mapping[str, Any], used: object) -> dict[str, Any]:
    """Return the settings ``asked`` for, with what was ``used`` where a measurement decided."""
    measured = used if isinstance(used, dict) else {}
    return {name: measured.get(name) if value == "auto" else value for name, value in asked.items()}


def _check_seeds(seeds: object, run: RunLog) -> Iterator[Contradiction]:
    event = run.first("seed")
    if not isinstance(seeds, str) or event is None:
        return
    origin, seed = event.metadata.get("origin"), event.value
    given = re.fullmatch(r"given, from (-?[0-9]{1,20})", seeds)
    if seeds == "derived" or given is None:
        if seeds != origin:
            yield "seeds", seeds, origin
    elif origin != "given" or (is_integer(seed) and seed != int(given[1]) + (run.index or 0)):
        yield "seeds", seeds, f"{origin} {seed}"


def _is_equal(value: object, logged: object) -> bool:
    """Return True for equal JSON values; a number may have lost digits to another precision."""
    if type(value) is type(logged) and value == logged:
        return True
    numbers = [v for v in (value, logged) if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) == 2:
        return math.isclose(*numbers, rel_tol=1e-6)
    return encode_canonically(value) == encode_canonically(logged)
