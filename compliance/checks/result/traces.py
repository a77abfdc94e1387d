"""What a run leaves that no other run has: keys of its quality, losses, times and readings.

Keys of two runs agree if the numbers agree to about five digits. Each key covers numbers that two
independent runs share by chance in one of 2**36 cases or less: metrics that only count samples, and
numbers with few digits, tell nothing. Their number is bounded, so all logs are compared in linear
time.
"""

import math
import os
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cepheid.compliance.checks.alike.near import EVALUATIONS, Steps, load_scale
from cepheid.compliance.checks.result.readings import list_readings
from cepheid.compliance.checks.result.sources import Source, list_sources
from cepheid.compliance.checks.time.pace import list_intervals, measure_ms
from cepheid.compliance.read.log.records import INTEGER_MAX
from cepheid.compliance.read.log.runlog import RunLog, read_repetitions
from cepheid.compliance.read.logs import ResultLogs
from cepheid.compliance.read.powerlog import PowerLog
from cepheid.rules.definition import Definition
from cepheid.rules.events import is_integer, is_number

GRIDS = 3
ROUNDING = 1e-9  # of sums of short numbers
SMALLEST, LARGEST = 1e-30, 1e30


def list_cells(numbers: Sequence[float]) -> list[list[int]]:
    """Return for each grid the cell of the logarithm of each number, with its sign.

    0 has a cell of its own.
    """
    places = [math.log(abs(number)) / CELL if number else 0.0 for number in numbers]
    signs = [(number > 0) - (number < 0) for number in numbers]
    signed, shifts = list(zip(places, signs, strict=True)), [at / GRIDS for at in range(GRIDS)]
    return [[sign * (2 * math.floor(at + shift) + 1) for at, sign in signed] for shift in shifts]


def is_detailed(number: float) -> bool:
    """Return whether a number of a usual size has six significant digits or more."""
    if not SMALLEST < abs(number) < LARGEST:
        return False
    return abs(float(f"{number:.5g}") - number) > ROUNDING * abs(number)


def measure_spread(values: Sequence[float]) -> float:
    """Return the standard deviation of values; no square of what somebody wrote overflows."""
    mean = sum(values) / len(values)
    return math.dist(values, [mean] * len(values)) / math.sqrt(len(values))


CELL = 2e-5  # of values and of generation times: logarithmic
SERIES_LENGTHS = (6, 12)  # values of one metric
TOGETHER_LENGTHS = (2, 4, 8)  # evaluations with all metrics
CURVE_NUMBERS_MIN = 4
WINDOWS_MAX = 8  # of one length
BITS_MIN = 40.0
WHOLE_BITS_MIN = 32.0  # of everything that a run has
BITS_ASSUMED = 6.0  # of a number, where too few runs show how much it varies
LOSS = 253  # above the number of any metric
SHARE_TOLERANCE = 1e-5
SHARE_DISTANCE_MAX = 0.1
TIME_CELLS_MS = (0.05, 8.0)  # the same times, shifted; and times that were changed a little
TIME_LENGTHS = (6, 10, 14, 20)
TIME_BITS_MIN = 32.0
RUNS_MIN = 3  # fewer do not show how much times vary
DURATIONS_MAX = 64
REPETITIONS = 8
SORTED_BITS = math.log2(math.factorial(REPETITIONS))
REPETITION_STARTS = (0, 16, 64)
READINGS = 16
RATIOS_DIFFERENT_SHARE = 0.6
READING_STARTS = (0, 16, 32, 48)
READINGS_DIFFERENT_MIN = 10
READINGS_EXACT = 60  # from the beginning, as T23 compares them within a result

WITHIN, CURVE, TIMES, POWER = range(4)


@dataclass(frozen=True)
class RunTrace:
    """The keys of one run by what they cover, and what is needed to judge an agreement."""

    path: Path
    line: int | None
    start_ms: float
    seed: int | None
    code_digest: str | None
    keys: "tuple[array[int], ...]"  # WITHIN a result; CURVE, TIMES and POWER everywhere
    curve: int  # equal only for runs whose metrics and losses are equal to the last digit
    durations_ms: "array[float]"
    power: Path | None = None
    benchmark: tuple[str, str] = ("", "")
    steps: Steps | None = None
    sources: tuple[Source, ...] = ()
    readings: "tuple[array[float], ...]" = ()


def trace_runs(logs: ResultLogs, definition: Definition) -> tuple[RunTrace, ...]:
    """Return the traces of the runs of a result."""
    runs = [run for run in logs.runs if len(run.all("run_start")) == 1]  # T2 reports others
    durations = [list_durations_ms(run) for run in runs]
    spreads = _measure_spreads_ms(durations)
    of_runs = [_list_series(run, definition) for run in runs]
    bits = _measure_bits(of_runs)
    power_of = {power.index: power for power in logs.power if not power.problems}
    digests = logs.digests
    traces = []
    for run, times, series in zip(runs, durations, of_runs, strict=True):
        start, seed = run.first("run_start"), run.value("seed")
        power = power_of.get(-1 if run.index is None else run.index)
        curve = list(_hash_curve(series, bits, definition))
        sha256 = digests.get(os.path.abspath(run.path))
        of_bytes = [int(sha256[:15], 16)] if sha256 else []  # a copy as it is
        keys = (
            _collect(key for key, _ in curve),
            _collect(key for key, is_telling in curve if is_telling),
            _collect([*_hash_durations(times, spreads), *_hash_repetitions(run), *of_bytes]),
            _collect(_hash_readings(power) if power else ()),
        )
        traces.append(
            RunTrace(
                run.path,
                start.line if start else None,
                start.time_ms if start else math.inf,
                seed if is_integer(seed) else None,
                run.text("code_digest"),
                keys,
                hash(tuple(tuple(values) for values in series.values())),
                array("d", times[:DURATIONS_MAX]),
                power.path if power else None,
                (definition.name, definition.scale),
                _measure_steps(run, definition),
                tuple(list_sources(run, definition)),
                list_readings(power) if power else (),
            )
        )
    return tuple(traces)


def _measure_steps(run: RunLog, definition: Definition) -> Steps | None:
    """Return how the quality moves from one evaluation to the next, if it can be compared."""
    course = [point.metrics for point in run.quality_curve]
    if len(course) < EVALUATIONS or definition.kind != "train":
        return None
    scale = load_scale(definition.name, definition.scale)
    steps = scale.measure(course) if scale else None
    return None if steps is None else array("d", steps)


def _collect(keys: Iterable[int]) -> "array[int]":
    return array("q", sorted(set(keys)))


def _list_starts(count: int) -> Sequence[int]:
    """Return where windows begin: everywhere, or in a long series at its beginning and its end."""
    if count <= WINDOWS_MAX:
        return range(max(0, count))
    half = WINDOWS_MAX // 2
    return [*range(half), *range(count - half, count)]


Column = tuple[Sequence[float], Sequence[float]]  # a number at each evaluation, and its bits


def _list_series(run: RunLog, definition: Definition) -> dict[int, list[float]]:
    """Return the metrics that tell runs apart and the losses, by a number for each kind."""
    course = run.quality_curve
    names = [*(target.metric for target in definition.quality), *definition.reported]
    series = {}
    for number, name in enumerate(names):
        values = [point.metrics[name] for point in course if name in point.metrics]
        is_whole = len(values) == len(course)
        if is_whole and _tells_runs_apart(values, definition.evaluation_samples):
            series[number] = values
    logged = [event.metadata.get("train_loss") for event in run.all("block_stop")]
    losses = [float(loss) for loss in logged if is_number(loss) and is_detailed(loss)]
    if losses and len(losses) == len(logged) == len(course):
        series[LOSS] = losses
    return series


def _measure_bits(of_runs: Sequence[Mapping[int, Sequence[float]]]) -> dict[tuple[int, int], float]:
    """Return how many bits each number of a series tells, from how much it varies between runs."""
    bits = {}
    for number in {number for series in of_runs for number in series}:
        columns = [series[number] for series in of_runs if number in series]
        for at in range(max(map(len, columns))):
            values = [column[at] for column in columns if at < len(column)]
            if len(set(values)) >= RUNS_MIN:
                share = measure_spread(values) / max(map(abs, values))
                bits[number, at] = math.log2(max(1.0, share / CELL))
    return bits


def _hash_curve(
    series: Mapping[int, Sequence[float]],
    bits: Mapping[tuple[int, int], float],
    definition: Definition,
) -> Iterator[tuple[int, bool]]:
    """Yield keys of the metrics and losses of a run, and whether they tell all runs apart.

    They cover one series, all metrics together, and all metrics with the losses. All keys tell the
    few runs of a result apart.
    """
    group = zlib.crc32(f"{definition.name} {definition.scale}".encode()) << 8
    columns: dict[int, Column] = {
        number: (values, [bits.get((number, at), BITS_ASSUMED) for at in range(len(values))])
        for number, values in series.items()
    }
    metrics = [column for number, column in columns.items() if number != LOSS]
    for number, column in columns.items():
        yield from _hash_columns(group + number, [column], SERIES_LENGTHS)
    if len(metrics) > 1:
        yield from _hash_columns(group + LOSS + 1, metrics, TOGETHER_LENGTHS)
    if metrics and LOSS in columns:
        yield from _hash_columns(group + LOSS + 2, list(columns.values()), TOGETHER_LENGTHS)


def _hash_columns(
    kind: int, columns: Sequence[Column], lengths: Sequence[int]
) -> Iterator[tuple[int, bool]]:
    """Yield keys of windows of several lengths over columns, and of all that is there."""
    evaluations, width = len(columns[0][0]), len(columns)
    bits = [sum(at) for at in zip(*(of for _, of in columns), strict=True)]
    of_columns = zip(*(list_cells(values) for values, _ in columns), strict=True)
    rows = [list(zip(*cells, strict=True)) for cells in of_columns]
    for length in sorted({*lengths, evaluations}):
        if length > evaluations or length * width < CURVE_NUMBERS_MIN:
            continue
        needed = WHOLE_BITS_MIN if length == evaluations else BITS_MIN
        for start in _list_starts(evaluations - length + 1):
            is_telling = sum(bits[start : start + length]) >= needed
            for grid, cells in enumerate(rows):
                yield hash((kind, grid, *cells[start : start + length])), is_telling


def _tells_runs_apart(values: Sequence[float], samples: int) -> bool:
    """Return whether a metric has many digits and does not merely count samples."""
    if not values or not all(map(is_detailed, values)):
        return False
    counts = [abs(value) * samples for value in values]
    return any(abs(n - round(n)) > min(SHARE_TOLERANCE * n, SHARE_DISTANCE_MAX) for n in counts)


def list_durations_ms(run: RunLog) -> list[float]:
    """Return the durations of blocks, generations and evaluations, without the first one."""
    durations = [measure_ms(start, stop) for start, stop in list_intervals(run)[1:]]
    return [duration if 0 < duration < INTEGER_MAX else 0.0 for duration in durations]


def _measure_spreads_ms(durations: Sequence[Sequence[float]]) -> list[float]:
    """Return how much each duration varies between the runs of the result, at most 64 of them.

    A run that is slower as a whole varies in one number, not in all: that is taken out.
    """
    count = min(DURATIONS_MAX, min(map(len, durations), default=0))
    totals = [sum(times[:count]) for times in durations]
    if len(durations) < RUNS_MIN or not all(totals):
        return []
    usual = sum(totals) / len(totals)
    spreads = []
    for number in range(count):
        there = {
            times[number] * usual / total for times, total in zip(durations, totals, strict=True)
        }
        spreads.append(measure_spread(list(there)))
    return spreads


def _hash_durations(times: Sequence[float], spreads: Sequence[float]) -> Iterator[int]:
    """Yield keys of the first durations, if they vary enough to tell runs apart."""
    for number, cell_ms in enumerate(TIME_CELLS_MS):
        bits = [math.log2(max(1.0, spread / cell_ms)) for spread in spreads[: len(times)]]
        for length in TIME_LENGTHS:
            if length <= len(bits) and sum(bits[:length]) >= TIME_BITS_MIN:
                for grid in range(GRIDS):
                    shift = grid / GRIDS
                    cells = [math.floor(time / cell_ms + shift) for time in times[:length]]
                    yield hash((number, grid, *cells))


def _hash_repetitions(run: RunLog) -> Iterator[int]:
    """Yield keys of measured times of generation: some in their order, and the longest ones.

    They compare times with the first one, so that other units or factors do not matter.
    """
    for event in run.all("generation_times"):
        seconds = read_repetitions(event)
        if seconds is None or len(seconds) < REPETITIONS:
            continue
        if len(set(seconds)) >= READINGS_DIFFERENT_MIN:
            yield hash(seconds)
        if not any(map(is_detailed, seconds)):
            continue
        for start in REPETITION_STARTS:
            yield from _hash_ratios(seconds[start : start + REPETITIONS], 3)
        yield from _hash_ratios(sorted(seconds)[-REPETITIONS:], 4, SORTED_BITS)


def _hash_readings(power: PowerLog) -> Iterator[int]:
    """Yield keys of the first power readings of each sensor, and of some later ones."""
    for sensor in power.sensors:
        first = tuple(sensor.watts[:READINGS_EXACT])
        if len(set(first)) >= READINGS_DIFFERENT_MIN:
            yield hash(first)
        for start in READING_STARTS:
            window = sensor.watts[start : start + READINGS]
            if len(window) == READINGS:
                yield from _hash_ratios(window, 5)


def _hash_ratios(values: Sequence[float], kind: int, bits_less: float = 0.0) -> Iterator[int]:
    """Yield keys of the ratios of values to the first of them, if they vary enough.

    The order of sorted values tells nothing: ``bits_less`` is what it would tell otherwise.
    """
    if len(values) < REPETITIONS or min(values) <= SMALLEST or max(values) >= LARGEST:
        return
    ratios = [value / values[0] for value in values[1:]]
    different = len({f"{value:.5g}" for value in values})
    bits = len(ratios) * math.log2(max(1.0, measure_spread(ratios) / CELL)) - bits_less
    if bits >= BITS_MIN and different >= RATIOS_DIFFERENT_SHARE * len(values):
        for grid, cells in enumerate(list_cells(ratios)):
            yield hash((kind, grid, *cells))  # of integers, so the same in every process
