"""Energy from sensors: RAPL counts processors and memory, ``counters`` has accelerators.

A thread reads the sensors twice a second with the clock of the run log. The readings are kept in
the form that rule T23 requires. Nothing is estimated: each power log names what no sensor measures.

The first rank of each node reads the sensors there. Monotonic clocks of machines have nothing in
common, so all of them are read at the same moment, after the ranks have met at a barrier.
"""

import re
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cepheid.reference.machine.counters import Counter, Keys, find_counters
from cepheid.reference.machine.ranks import Ranks

POWERCAP = Path("/sys/class/powercap")
PERIOD_SECONDS = 0.5
LAST_SECONDS = 0.1  # between the two readings after the end, so that the last one is one of power
NEVER_MEASURED = "power supply, main board, storage, network, cooling"


@dataclass(frozen=True)
class Sensors:
    """The counters of this machine, none of which counts what another one counts too.

    ``not_measured`` names the parts without a counter. ``missing`` gives, for each kind of sensor
    that was not found, the reason.
    """

    counters: tuple[Counter, ...] = ()
    not_measured: str = ""
    missing: tuple[str, ...] = ()

    @property
    def reason_for_none(self) -> str:
        """Why there is no counter, in one line; empty if there is one."""
        return "" if self.counters else f"no sensors ({'; '.join(self.missing)})"


@dataclass(frozen=True)
class Trace:
    """The readings: times of the monotonic clock, and the joules of every counter at each time.

    ``times_seconds`` has shape (readings,) and ``joules`` (readings, counters); joules count from
    the first reading.
    """

    names: tuple[str, ...]
    not_measured: str
    times_seconds: tuple[float, ...]
    joules: tuple[tuple[float, ...], ...]

    def energy_joules(self, start_seconds: float, stop_seconds: float) -> float:
        """Return the energy of all counters between two moments.

        As in rule T23, power is constant between two readings.
        """
        return sum(self._interpolate(stop_seconds)) - sum(self._interpolate(start_seconds))

    def list_watts(self) -> Iterator[tuple[float, list[float]]]:
        """Yield the milliseconds of each reading and the mean power of each counter in watts.

        The power is that from this reading to the next one, so the last reading has none.
        """
        for row in range(len(self.times_seconds) - 1):
            seconds = self.times_seconds[row + 1] - self.times_seconds[row]
            pairs = zip(self.joules[row], self.joules[row + 1], strict=True)
            watts = [(after - before) / seconds for before, after in pairs]
            yield 1000 * self.times_seconds[row], watts

    def shift(self, seconds: float) -> "Trace":
        """Return the same readings on a clock that is so much ahead."""
        shifted = tuple(moment + seconds for moment in self.times_seconds)
        return replace(self, times_seconds=shifted)

    def name_node(self, number: int) -> "Trace":
        """Return the same with the number of the node before the name of each counter."""
        return replace(self, names=tuple(f"node{number}-{name}" for name in self.names))

    def _interpolate(self, at_seconds: float) -> list[float]:
        """Interpolate the joules of each counter linearly between two readings."""
        after = min(max(bisect_right(self.times_seconds, at_seconds), 1), len(self.joules) - 1)
        begin, end = self.times_seconds[after - 1], self.times_seconds[after]
        share = (at_seconds - begin) / (end - begin)
        pairs = zip(self.joules[after - 1], self.joules[after], strict=True)
        return [first + share * (second - first) for first, second in pairs]


class Meter:
    """Reads sensors during a ``with`` block; without sensors it does nothing."""

    def __init__(self, sensors: Sensors) -> None:
        self.sensors = sensors
        self.failure = ""  # why the readings ended early
        self._times_seconds: list[float] = []
        self._values: list[list[float]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="energy", daemon=True)

    def __enter__(self) -> "Meter":
        if self.sensors.counters:
            self._read()
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.finish()

    def finish(self) -> None:
        """Read the sensors a last time after what was measured; the block may go on."""
        if not self.sensors.counters or self._over.is_set():
            return
        self._over.set()
        self._thread.join()
        self._read()
        time.sleep(LAST_SECONDS)
        self._read()

    @property
    def trace(self) -> Trace | None:
        """All readings, or None if a sensor failed or there is none."""
        if self.failure or len(self._times_seconds) < 2:
            return None
        names = tuple(counter.name for counter in self.sensors.counters)
        wraps = [counter.wraps_joules for counter in self.sensors.counters]
        joules = tuple(_sum_increments(self._values, wraps))
        return Trace(names, self.sensors.not_measured, tuple(self._times_seconds), joules)

    def _watch(self) -> None:
        while not self._over.wait(PERIOD_SECONDS):
            self._read()

    def _read(self) -> None:
        if self.failure:
            return
        now = time.monotonic()
        try:
            values = [counter.read() for counter in self.sensors.counters]
        except Exception as error:  # a sensor that breaks must not cost the run
            self.failure = f"{type(error).__name__}: {error}"
            return
        self._times_seconds.append(now)
        self._values.append(values)


def _sum_increments(
    values: Sequence[Sequence[float]], wraps: Sequence[float]
) -> Iterator[tuple[float, ...]]:
    """Yield the joules of each counter since the first reading; counters may wrap.

    ``values`` has shape (readings, counters), ``wraps`` (counters,), each yielded row (counters,).
    """
    total = [0.0] * len(wraps)
    before = values[0]
    for row in values:
        for number, (last, now) in enumerate(zip(before, row, strict=True)):
            total[number] += now - last if now >= last else now - last + wraps[number]
        before = row
        yield tuple(total)


# Finding the sensors -----------------------------------------------------------------------------


def find_sensors(
    powercap: Path = POWERCAP, has_gpu: bool = False, used: Sequence[Keys] = ()
) -> Sensors:
    """Return the sensors of this machine, one node of the run.

    ``used`` are the keys of all accelerators that the ranks of the node drive, where they are
    known.
    """
    processors, why_no_rapl = _find_rapl(powercap)
    gpus, why_no_gpus = find_counters(used) if has_gpu else ((), "")
    left_out = [] if processors else ["processors"]
    if not any(counter.name.startswith("dram") for counter in processors):
        left_out.append("memory")
    left_out += ["GPUs"] if has_gpu and not gpus else []
    missing = tuple(filter(None, (why_no_rapl, why_no_gpus)))
    not_measured = ", ".join([*left_out, NEVER_MEASURED])
    return Sensors((*processors, *gpus), not_measured, missing)


def _find_rapl(powercap: Path) -> tuple[tuple[Counter, ...], str]:
    """Return the counters of packages and of their memory, or why there are none.

    Cores and graphics are parts of a package. ``psys`` and ``intel-rapl-mmio`` count the energy of
    packages once more. All these are left out.
    """
    zones = sorted(powercap.glob("intel-rapl:*"), key=lambda zone: zone.name)
    counters = []
    for zone in zones:
        place = re.fullmatch(r"intel-rapl:(\d+)(:\d+)?", zone.name)
        try:
            kind = (zone / "name").read_text(encoding="ascii").strip()
            if not place or not (kind.startswith("package") or kind == "dram"):
                continue
            name = kind if kind.startswith("package") else f"dram-{place.group(1)}"
            read = partial(_read_joules, zone / "energy_uj")
            counter = Counter(name, read, _read_joules(zone / "max_energy_range_uj"))
            counter.read()
        except OSError as error:
            return (), f"{error.filename}: {error.strerror}"
        counters.append(counter)
    return tuple(counters), "" if counters else f"no {powercap}/intel-rapl*"


def _read_joules(path: Path) -> float:
    return int(path.read_text(encoding="ascii")) / 1e6


LEAST_STEP_MS = 0.001  # between two rows, whose times must advance


@dataclass(frozen=True)
class Measured:
    """The traces of a run, those of the first node first; ``why_none`` where there are none.

    Times are those of the first node's clock. ``failure`` says that a sensor ended early.
    """

    traces: tuple[Trace, ...] = ()
    why_none: str = ""
    failure: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all sensors."""
        return tuple(name for trace in self.traces for name in trace.names)

    @property
    def not_measured(self) -> str:
        """What no sensor measures."""
        return self.traces[0].not_measured if self.traces else ""

    def report(self, start_ms: float, stop_ms: float) -> dict[str, Any]:
        """Return the energy from ``run_start`` to ``run_stop``, or why there is none."""
        if not self.traces:
            return {"none": self.why_none or "a sensor failed during the run"}
        span = start_ms / 1000, stop_ms / 1000
        joules = sum(trace.energy_joules(*span) for trace in self.traces)
        return {
            "joules": joules,
            "mean_watts": 1000 * joules / (stop_ms - start_ms),
            "sensors": list(self.names),
            "not_measured": self.not_measured,
        }

    def format_power_log(self) -> str:
        """Return the text of ``power_<k>.csv`` (rule T23).

        A row holds the readings of one node; the cells of the others are empty.
        """
        lines = [f"# not measured: {self.not_measured}", ",".join(["monotonic_ms", *self.names])]
        rows = []
        for number, trace in enumerate(self.traces):
            before = sum(len(other.names) for other in self.traces[:number])
            after = len(self.names) - before - len(trace.names)
            for milliseconds, watts in trace.list_watts():
                cells = [f"{value:.3f}" for value in watts]
                rows.append((milliseconds, [*[""] * before, *cells, *[""] * after]))
        latest = -LEAST_STEP_MS
        for milliseconds, cells in sorted(rows):
            latest = max(milliseconds, latest + LEAST_STEP_MS)
            lines.append(",".join([f"{latest:.3f}", *cells]))
        return "".join(f"{line}\n" for line in lines)


def gather(meter: Meter, ranks: Ranks) -> Measured:
    """Return what all nodes measured, on the first rank; every rank must call this.

    The other ranks get the same, and have no use for it.
    """
    ranks.barrier()
    now = time.monotonic()
    is_first_of_node = ranks.rank % ranks.ranks_per_node == 0
    sensors = meter.sensors
    mine = now, bool(sensors.counters), meter.trace, meter.failure, sensors.reason_for_none
    told = ranks.all_gather_object(mine if is_first_of_node else None)
    nodes = [of_node for of_node in told if of_node is not None]
    where = (lambda number: f"node {number}: ") if len(nodes) > 1 else (lambda number: "")
    failures = [f"{where(number)}{each[3]}" for number, each in enumerate(nodes) if each[3]]
    if failures:
        return Measured(failure="; ".join(failures))
    traces, without = [], []
    for number, (clock, has_counters, trace, _, _) in enumerate(nodes):
        if not has_counters or trace is None:
            without.append(number)
            continue
        shifted = trace.shift(nodes[0][0] - clock)
        traces.append(shifted if len(nodes) == 1 else shifted.name_node(number))
    if not traces:
        return Measured(why_none=nodes[0][4])
    return Measured(_name_missing_nodes(traces, without))


def _name_missing_nodes(traces: Sequence[Trace], without: Sequence[int]) -> tuple[Trace, ...]:
    """Return the traces; the first one says what is not measured of all nodes."""
    parts = dict.fromkeys(part for trace in traces for part in trace.not_measured.split(", "))
    nodes = [f"node {number}" for number in without]
    first = replace(traces[0], not_measured=", ".join([*nodes, *parts]))
    return (first, *traces[1:])
