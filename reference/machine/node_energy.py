"""Energy of all nodes: the readings of each node on the clock of the first one, as one power log.

The first rank of each node reads the sensors there. Monotonic clocks of machines have nothing in
common, so all of them are read at the same moment, after the ranks have met at a barrier.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from cepheid.reference.machine.energy import Meter, Trace
from cepheid.reference.machine.ranks import Ranks

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
