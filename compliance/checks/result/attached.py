"""S14: what the configuration and the reports of a result say is what its logs say."""

import itertools
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from cepheid.compliance.checks.agreement import JsonSource, LogSource, Source, find_disagreements
from cepheid.compliance.checks.registry import Needs, Place, rule
from cepheid.compliance.checks.result.aside import check_belonging
from cepheid.compliance.finding import Finding, breach, escape, format_value
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
    """Yield what a report says of the energy, if the power log of the run does not say so.

    The readings of a meter may stand in place of those that the report is about, or beside them.
    """
    if not isinstance(energy, dict):
        return
    joules = energy.get("joules")
    if joules is not None and power is None:
        yield "energy.joules", joules, "no power log (T23)"
    if power is None or power.problems or "none" in energy:
        return  # the readings of a meter were added to a run that measured nothing itself
    there = {sensor.name for sensor in power.sensors}
    listed = energy.get("sensors")
    named = set(map(str, listed)) if isinstance(listed, list) and listed else there
    if not named & there:
        return  # the readings of a meter took the place of those that the report is about
    if not named <= there or (listed is not None and not isinstance(listed, list)):
        yield "energy.sensors", listed, sorted(there)
        return
    power = replace(power, sensors=tuple(one for one in power.sensors if one.name in named))
    measured, (start_ms, stop_ms) = measure_joules(run, power), run.timed_ms or (0.0, 0.0)
    if measured is not None and not _is_near(joules, measured):
        yield "energy.joules", joules, measured
    watts = energy.get("mean_watts")
    seconds = (stop_ms - start_ms) / 1000
    mean = measured / seconds if measured is not None and seconds > 0 else None
    if watts is not None and mean is not None and not _is_near(watts, mean):
        yield "energy.mean_watts", watts, mean
    if named == there and energy.get("not_measured", power.not_measured) != power.not_measured:
        yield "energy.not_measured", energy["not_measured"], power.not_measured


def find_impossible_rows(tables: object, run: RunLog) -> Iterator[tuple[str, object, object]]:
    """Yield times in the rows of a report that are out of order, or not those in the log."""
    for row in itertools.chain.from_iterable(_list_tables(tables)):
        yield from _check_order(row)
        images = row.get("images")
        timed = run.all("generation_times") if is_integer(images) else ()
        made = (event for event in timed if event.metadata.get("images_count") == images)
        for event in itertools.islice(made, 1):
            yield from _check_times(row, read_repetitions(event))


def _list_tables(tables: object) -> Iterator[list[dict[str, object]]]:
    """Yield the rows of each table of a report, whatever its shape."""
    for table in tables if isinstance(tables, list) else ():
        rows = table.get("rows") if isinstance(table, dict) else None
        yield [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def find_other_quality(tables: object, run: RunLog) -> Iterator[tuple[str, object, object]]:
    """Yield numbers of a report that the last evaluation of the log contradicts.

    A column with the name of a metric has it for parts of the samples, so what the log says lies
    between its numbers. ``auroc`` in a row called ``Mass`` is ``auroc_mass`` of the log.
    """
    last = run.quality_curve[-1].metrics if run.quality_curve else {}
    for rows in _list_tables(tables):
        columns: defaultdict[str, list[float]] = defaultdict(list)
        for cells in rows:
            label = next((text for text in cells.values() if isinstance(text, str)), "")
            part = re.sub(r"\W+", "_", label[:200].casefold())
            for name, value in cells.items():
                is_of_other = name.endswith("_error") and name.removesuffix("_error") in cells
                if is_of_other or not is_number(value):
                    continue  # the standard error of another column
                of_part = last.get(f"{name}_{part}", value)
                if not _is_near(value, of_part):
                    yield f"{name} of {label}", value, of_part
                if name in last:
                    columns[name].append(value)
        for name, values in columns.items():
            low, high, room = min(values), max(values), TOLERANCE * abs(last[name])
            if not low - room <= last[name] <= high + room:
                yield name, [low, high] if low < high else low, last[name]


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


def _is_near(value: object, expected: float) -> bool:
    if not is_number(value):
        return False
    return math.isclose(value, expected, rel_tol=TOLERANCE, abs_tol=1e-6)


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
        found = (one for run in runs for one in _find_contradictions(attached, run, result))
        yield from itertools.islice(found, 1)  # one is enough to look at the file


def _find_contradictions(attached: Attached, run: RunLog, result: ResultLogs) -> Iterator[Finding]:
    """Yield what a file says that the log of a run contradicts."""
    file = JsonSource(attached.path, attached.content)
    kind = "configuration" if attached.number is None else "report"
    sources: dict[str, Source] = {kind: file, "log": LogSource(run)}
    for one in find_disagreements(kind, **sources):
        if one.others or run.is_complete:  # else a record that T1 misses may say it
            others, what = one.others or run.path.name, str(one.key)
            yield _report(attached, one.line, what, (one.said, one.expected), others)
    if kind == "configuration":
        return
    power = next((log for log in result.power if log.index == attached.number), None)
    of_run = itertools.chain(
        find_wrong_energy(attached.content.get("energy"), run, power),
        find_impossible_rows(attached.content.get("tables"), run),
        find_other_quality(attached.content.get("tables"), run),
    )
    for what, said, logged in of_run:
        line = file.find_line(tuple(what.split("."))) or file.find_line(("tables",))
        texts = said, logged if isinstance(logged, str) else format_value(logged)
        yield _report(attached, line, what, texts, power.path.name if power else run.path.name)


def _report(
    attached: Attached, line: int | None, what: str, texts: tuple[object, str], others: str
) -> Finding:
    said, expected = texts
    return breach(
        attached, line, "S14.contradiction", what=escape(what)[:100], others=others,
        expected=expected, said=format_value(said),
    )  # fmt: skip
