"""S14: the energy and the times in the report of a run are possible, and those of its logs."""

import itertools
import math
from collections.abc import Iterator

from cepheid.compliance.read.log.runlog import RunLog, read_repetitions
from cepheid.compliance.read.powerlog import PowerLog
from cepheid.compliance.read.summary import measure_joules
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
    if power is None or power.problems:
        return
    measured, seconds = measure_joules(run, power), _measure_seconds(run)
    if "none" in energy:
        yield "energy.none", energy["none"], f"a power log with {measured or 0:,.0f} J"
    elif measured is not None and not _is_near(joules, measured):
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
