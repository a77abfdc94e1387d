"""T23: power logs, where a result has them."""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path

from cepheid.compliance.checks.registry import Described, Needs, Place, rule
from cepheid.compliance.checks.result.readings import LAGS_MAX
from cepheid.compliance.checks.result.traces import RunTrace
from cepheid.compliance.finding import Finding, breach, escape
from cepheid.compliance.read.logs import ResultLogs
from cepheid.compliance.read.powerlog import PowerLog, Sensor
from cepheid.rules.definition import Definition
from cepheid.rules.events import is_integer, is_number

GAP_MS_MAX = 2_000.0  # a sampler with one reading per second is sometimes late
MEAN_MS_MAX = 1_100.0  # between readings; each of them may come a little late
HEADER_LINE = 2
UNCHANGED_READINGS_MAX = 60
COMPARED_READINGS = 60  # from the beginning, because a copy may be shortened
TELLING_READINGS_MIN = 10  # different readings; two idle machines may agree in a few


@rule("T23", Needs.RESULT)
def check_energy(result: ResultLogs, definition: Definition, place: Place) -> Iterator[Finding]:
    """Check that power logs belong to runs, are well formed, and cover the timed region (T23)."""
    by_index = {run.index: run for run in result.runs}
    sound = []
    for log in result.power:
        run = by_index.get(log.index)
        if run is None:
            yield breach(log, None, "T23.no_run", index=str(log.index))
            continue
        findings = [
            breach(
                log, problem, "T23.form", problem=escape(problem.message),
                expected=problem.expected, got=problem.got,
            )
            for problem in log.problems
        ]  # fmt: skip
        if not findings and run.timed_ms:  # else T2, T4 or T7 reports it
            findings = [*_check_cover(log, *run.timed_ms)] or [*_check_period(log, *run.timed_ms)]
        yield from findings
        if not findings:
            sound.append(log)
    yield from _check_sensors(sound)
    yield from _check_constant(sound)
    yield from _check_power(sound, place.described)
    lacking = sorted(by_index.keys() - {log.index for log in result.power}, key=str)
    if result.power and lacking:
        yield breach(
            result, None, "T23.missing", index=str(lacking[0]), logs=len(result.power),
            runs=len(result.runs),
        )  # fmt: skip


def _check_cover(log: PowerLog, start_ms: float, stop_ms: float) -> Iterator[Finding]:
    """Check that each sensor was read from before run_start until after run_stop, without gaps."""
    without: dict[tuple[int, float, float], list[str]] = {}
    for sensor in log.sensors:
        gap = _find_gap(sensor, start_ms, stop_ms)
        if gap is not None:
            without.setdefault(gap, []).append(sensor.name)
    for (line, from_ms, to_ms), names in without.items():
        more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
        yield breach(
            log, line, "T23.gap", sensors=", ".join(names[:3]), more=more,
            seconds=(to_ms - from_ms) / 1000, from_ms=from_ms, to_ms=to_ms,
        )  # fmt: skip


def _check_period(log: PowerLog, start_ms: float, stop_ms: float) -> Iterator[Finding]:
    """Check that each sensor is read once a second or more often, on average over the run."""
    for sensor in log.sensors:
        first = bisect_right(sensor.times_ms, start_ms) - 1
        last = bisect_left(sensor.times_ms, stop_ms)
        if last <= first:
            continue
        mean_ms = (sensor.times_ms[last] - sensor.times_ms[first]) / (last - first)
        if mean_ms > MEAN_MS_MAX:
            line, seconds = sensor.lines[first], mean_ms / 1000
            yield breach(log, line, "T23.sparse", sensor=sensor.name, seconds=seconds)
            return


def _find_gap(sensor: Sensor, start_ms: float, stop_ms: float) -> tuple[int, float, float] | None:
    """Return the first gap between readings: the line after it, its begin and end in ms."""
    times_ms = sensor.times_ms
    if not times_ms or times_ms[0] > start_ms:
        until_ms = min(times_ms[0], stop_ms) if times_ms else stop_ms
        return (sensor.lines[0] if times_ms else HEADER_LINE), start_ms, until_ms
    for number in range(bisect_right(times_ms, start_ms), len(times_ms)):
        before_ms, time_ms = times_ms[number - 1], times_ms[number]
        if before_ms >= stop_ms:
            break
        if time_ms - before_ms > GAP_MS_MAX:
            return sensor.lines[number], max(before_ms, start_ms), min(time_ms, stop_ms)
    if times_ms[-1] < stop_ms:
        return sensor.lines[-1], max(times_ms[-1], start_ms), stop_ms
    return None


def _check_sensors(logs: list[PowerLog]) -> Iterator[Finding]:
    """Check that all power logs have the same sensors and that none is a copy of another."""
    readings: dict[object, PowerLog] = {}
    for log in logs:
        names = [sensor.name for sensor in log.sensors]
        expected = [sensor.name for sensor in logs[0].sensors]
        if names != expected or log.not_measured != logs[0].not_measured:
            yield breach(
                log, 2 if names != expected else 1, "T23.sensors", other=logs[0].path.name,
                expected=", ".join(expected[:10]), expected_missing=logs[0].not_measured,
                sensors=", ".join(names[:10]), missing=log.not_measured,
            )  # fmt: skip
        trace = tuple(tuple(sensor.watts[:COMPARED_READINGS]) for sensor in log.sensors)
        if not any(len(set(watts)) >= TELLING_READINGS_MIN for watts in trace):
            continue
        other = readings.setdefault(trace, log)
        if other is not log:
            yield breach(log, 3, "T23.copied", other=other.path.name)


NODE_WATTS = 2.0, 3_000.0  # the least of any machine that trains, and the most without its parts
CORE_WATTS_MAX, ACCELERATOR_WATTS_MAX = 60.0, 4_000.0  # cooling and losses included
LIMIT_WATTS = "accelerator_max_watts"  # where it is described, it counts in place of that
LOSSES, ACCURACY = 1.5, 1.1  # of a meter at the plug, of counters in accelerators: NVML's have 5%
_OF_ACCELERATOR = re.compile(r"(node[0-9]+-)?gpu[0-9]+")  # counters as `cepheid run` names them


def _check_power(logs: list[PowerLog], described: Described | None) -> Iterator[Finding]:
    """Warn of a mean power that no such machine draws: another unit, a factor, an offset."""
    parts = ("nodes", "processor_cores_per_node")
    counts = [described.system.get(key) if described else None for key in parts]
    if not logs or not described or not all(is_integer(count) for count in counts):
        return
    nodes, cores = (int(str(count)) for count in counts)
    limit, count = described.system.get(LIMIT_WATTS), described.accelerators
    lowest, of_node = NODE_WATTS
    highest = nodes * (of_node + CORE_WATTS_MAX * cores)
    highest += count * (LOSSES * float(limit) if is_number(limit) else ACCELERATOR_WATTS_MAX)
    for log in logs:
        means = {sensor.name: sum(sensor.watts) / len(sensor.watts) for sensor in log.sensors}
        watts = sum(means.values())
        inside = sum(mean for name, mean in means.items() if _OF_ACCELERATOR.fullmatch(name))
        if not lowest <= watts <= highest:
            yield breach(log, 3, "T23.implausible", watts=watts, lowest=lowest, highest=highest)
        elif is_number(limit) and inside > ACCURACY * count * float(limit):
            yield breach(log, 3, "T23.above_limit", watts=inside, count=count, limit=float(limit))


def _check_constant(logs: list[PowerLog]) -> Iterator[Finding]:
    """Warn of sensors that read the same all the time, or the same few readings again and again."""
    for log in logs:
        periods = {sensor.name: _find_period(sensor.watts) for sensor in log.sensors}
        for sensor in log.sensors:
            if periods[sensor.name] == 1:
                yield breach(
                    log, sensor.lines[0], "T23.constant", sensor=sensor.name, watts=sensor.watts[0]
                )
        if max(periods.values(), default=0) > 1:
            yield tell_of_period(log)


def tell_of_period(log: PowerLog | RunTrace | Path) -> Finding:
    """Return the warning that the readings of a log repeat themselves."""
    return breach(log, 3, "T23.periodic")


def _find_period(watts: Sequence[float]) -> int:
    """Return after how many readings all are repeated; 0 for too few, or if they are not."""
    first = watts[:UNCHANGED_READINGS_MAX]
    for period in range(1, LAGS_MAX + 1 if len(first) == UNCHANGED_READINGS_MAX else 0):
        if first[period:] == first[:-period] and watts[period:] == watts[:-period]:
            return period
    return 0
