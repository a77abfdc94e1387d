"""Energy by counters like those of Linux, on any nodes; how much of the machine a run had."""

import os
import time
from collections import namedtuple
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from cepheid.compliance.read import powerlog
from cepheid.reference.machine import energy, use
from cepheid.reference.machine.counters import Counter
from cepheid.reference.machine.energy import Measured, Meter, Sensors, Trace
from cepheid.reference.machine.ranks import SingleProcess

RANGE_MICROJOULES = 262_143_328_850


def zone(root: Path, place: str, name: str, microjoules: int) -> Path:
    folder = root / place
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    (folder / "max_energy_range_uj").write_text(f"{RANGE_MICROJOULES}\n")
    return folder


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    """One package with cores and memory, and two zones that count the package again."""
    zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 3_000_000)
    zone(tmp_path, "intel-rapl:0:1", "dram", 1_000_000)
    zone(tmp_path, "intel-rapl:1", "psys", 9_000_000)
    zone(tmp_path, "intel-rapl-mmio:0", "package-0", 5_000_000)
    return tmp_path


def test_nothing_is_counted_twice_and_a_counter_that_may_not_be_read_is_named(
    powercap: Path,
) -> None:
    sensors = energy.find_sensors(powercap)
    assert [counter.name for counter in sensors.counters] == ["package-0", "dram-0"]
    assert [counter.read() for counter in sensors.counters] == [5.0, 1.0]
    assert sensors.not_measured == energy.NEVER_MEASURED
    assert sensors.reason_for_none == ""
    (powercap / "intel-rapl:0" / "energy_uj").unlink()
    assert "intel-rapl:0/energy_uj: No such file" in energy.find_sensors(powercap).reason_for_none


def test_missing_counters_are_named_and_no_sensors_told_with_the_reason(tmp_path: Path) -> None:
    sensors = energy.find_sensors(tmp_path)
    assert sensors.reason_for_none == f"no sensors (no {tmp_path}/intel-rapl*)"
    with Meter(sensors) as meter:
        pass
    assert meter.trace is None
    measured = energy.gather(meter, SingleProcess("none"))
    assert "no sensors" in measured.report(0, 1)["none"]
    zone(tmp_path, "intel-rapl:0", "package-0", 0)
    assert energy.find_sensors(tmp_path).not_measured == f"memory, {energy.NEVER_MEASURED}"


def test_a_counter_that_begins_again() -> None:
    rows = [[90.0], [98.0], [3.0], [10.0]]
    assert list(energy._sum_increments(rows, [100.0])) == [(0.0,), (8.0,), (13.0,), (20.0,)]


def test_the_power_log_is_sound_and_gives_the_same_energy(tmp_path: Path) -> None:
    trace = Trace(
        ("package-0", "dram-0"), "storage", (10.0, 10.5, 11.0, 12.0),
        ((0.0, 0.0), (40.0, 5.0), (90.0, 9.0), (110.0, 10.0)),
    )  # fmt: skip
    path = tmp_path / "power_0.csv"
    path.write_text(Measured((trace,)).format_power_log())
    log = powerlog.read(path)
    assert not log.problems
    assert log.not_measured == "storage"
    assert log.sensors[0].watts.tolist() == [80.0, 100.0, 20.0]  # type: ignore[attr-defined]
    assert log.energy_joules(10_250, 11_000) == pytest.approx(22.5 + 50 + 4)
    assert trace.energy_joules(10.25, 11.0) == pytest.approx(22.5 + 50 + 4)


def test_readings_go_on_after_the_work_and_a_sensor_that_fails_costs_no_run() -> None:
    readings = iter(range(1000))
    counter = Counter("package-0", lambda: float(next(readings)))
    with Meter(Sensors((counter,), "storage")) as meter:
        pass
    trace = meter.trace
    assert trace is not None
    assert len(trace.times_seconds) >= 3  # the last row of the log needs a reading after it
    assert Measured((trace,)).format_power_log().count("\n") == 1 + len(trace.times_seconds)
    answers = [1.0]
    with Meter(Sensors((Counter("gpu0", answers.pop),), "")) as meter:
        pass
    assert meter.trace is None
    assert "IndexError" in meter.failure


def test_reading_takes_less_than_a_hundredth_of_the_time_and_is_done_every_second(
    powercap: Path,
) -> None:
    assert energy.PERIOD_SECONDS <= 1
    meter = Meter(energy.find_sensors(powercap))
    readings, begun = 200, time.thread_time()
    for _ in range(readings):
        meter._read()
    assert (time.thread_time() - begun) / readings < 0.01 * energy.PERIOD_SECONDS


# Several nodes: all readings on one clock, in one power log ---------------------------------------


FIRST = Trace(
    ("package-0",), "storage", (10.0, 10.5, 11.0, 12.0), ((0.0,), (40.0,), (90.0,), (110.0,))
)
# Its clock is 490 s behind; it starts at 9.9 s on the clock of the first node.
READINGS = ((0.0, 0.0), (50.0, 5.0), (100.0, 9.0))
SECOND = Trace(("package-0", "gpu0"), "memory, storage", (500.0, 501.0, 502.0), READINGS)


@dataclass(frozen=True)
class FakeMeter:
    """A meter that has read."""

    trace: Trace | None
    failure: str = ""
    sensors: Sensors = field(default_factory=lambda: Sensors((Counter("package-0", float),), ""))


@dataclass(frozen=True)
class FakeRanks(SingleProcess):
    """The first rank of others, which answer what they are told to."""

    others: Sequence[Any] = ()

    def all_gather_object(self, message: Any) -> list[Any]:
        now, *rest = message
        shifted = [None if other is None else (now + other[0], *other[1:]) for other in self.others]
        return [(now, *rest), *shifted]


def gather(*others: Any, mine: Trace | None = FIRST, failure: str = "") -> Measured:
    ranks: Any = FakeRanks("none", others=others)
    meter: Any = FakeMeter(mine, failure)
    return energy.gather(meter, ranks)


def other(trace: Trace | None, clock: float = 490.1, failure: str = "") -> tuple[Any, ...]:
    has_counters = trace is not None or bool(failure)
    return clock, has_counters, trace, failure, "no counters"


def test_the_readings_of_two_nodes_are_one_power_log(tmp_path: Path) -> None:
    measured = gather(None, other(SECOND), None)
    path = tmp_path / "power_0.csv"
    path.write_text(measured.format_power_log())
    log = powerlog.read(path)
    assert not log.problems
    assert [sensor.name for sensor in log.sensors] == [
        "node0-package-0", "node1-package-0", "node1-gpu0",
    ]  # fmt: skip
    assert log.not_measured == "storage, memory"
    assert list(log.sensors[1].times_ms) == pytest.approx([9_900, 10_900])
    report = measured.report(10_250, 11_000)
    assert report["joules"] == pytest.approx(20 + 50 + 0.65 * 55 + 0.1 * 54)
    assert log.energy_joules(10_250, 11_000) == pytest.approx(report["joules"], abs=0.01)


def test_nodes_without_sensors_or_with_a_failed_one_and_one_node_alone(tmp_path: Path) -> None:
    measured = gather(other(None), other(SECOND))
    assert measured.not_measured == "node 1, storage, memory"
    assert measured.names == ("node0-package-0", "node2-package-0", "node2-gpu0")
    measured = gather(other(None, failure="OSError: gone"))
    assert measured.failure == "node 1: OSError: gone"
    assert measured.report(0, 1) == {"none": "a sensor failed during the run"}
    measured = gather(None)  # another rank on the same node
    assert measured.names == ("package-0",)
    assert measured.format_power_log().splitlines()[:3] == [
        "# not measured: storage", "monotonic_ms,package-0", "10000.000,80.000",
    ]  # fmt: skip
    path = tmp_path / "power_0.csv"
    path.write_text(Measured((FIRST, FIRST.name_node(1))).format_power_log())
    assert not powerlog.read(path).problems


def _gather_on_rank() -> tuple[str, ...]:
    from cepheid.reference.torch.ranks import distributed

    os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}  # the only rank of its node
    with distributed.start_ranks() as ranks:
        joules = iter(range(1000))
        with Meter(Sensors((Counter("a", lambda: float(next(joules))),), "")) as meter:
            ranks.barrier()
        return energy.gather(meter, ranks).names


def test_ranks_gather_what_their_nodes_measured() -> None:
    pytest.importorskip("torch", reason="needs the extra torch")
    from tests.distributed import on_ranks

    assert on_ranks(2, _gather_on_rank) == [("node0-a", "node1-a")] * 2


# How much of the machine a run had ----------------------------------------------------------------


Times = namedtuple("Times", ["user", "system", "idle", "iowait", "steal", "guest", "guest_nice"])


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A machine of three processors, of which this process may use the first two."""
    made = SimpleNamespace(times=[Times(0, 0, 0, 0, 0, 0, 0)] * 3, own=0.0)
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: made.times)
    monkeypatch.setattr(use, "_sum_own_seconds", lambda: made.own)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1}, raising=False)
    return made


def test_shares_are_of_the_processors_that_may_be_used_and_at_most_all(
    clocks: SimpleNamespace,
) -> None:
    start = use.read()
    passed = (9, 1, 0, 0, 0, 5, 0), (2, 0, 3, 1, 4, 0, 0), (0, 0, 10, 0, 0, 0, 0)
    clocks.times = [Times(*seconds) for seconds in passed]
    clocks.own = 8.0
    stop = use.read()
    assert start
    assert stop
    assert use.describe(1.5, start, stop) == {
        "load_before": 1.5,
        "processors": 2,
        "idle_share": pytest.approx(0.2),
        "stolen_share": pytest.approx(0.2),
        "own_share": pytest.approx(0.4),
    }
    start = use.Reading(1, 10.0, 0.0, 0.0, 1.0)
    stop = use.Reading(1, 20.0, -0.5, 0.0, 12.0)  # clocks of two kinds, which are read in turn
    assert use.describe(0.0, start, stop) == {
        "load_before": 0.0, "processors": 1,
        "idle_share": 0.0, "stolen_share": 0.0, "own_share": 1.0,
    }  # fmt: skip


def test_a_machine_that_tells_nothing_has_no_use(
    clocks: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = use.read()
    assert reading
    assert use.describe(None, reading, reading) == {}
    clocks.times = clocks.times[:1]  # the second is hidden
    assert use.read() is None
    monkeypatch.delattr("os.getloadavg", raising=False)
    assert use.read_load() is None


def test_own_time_grows_with_work() -> None:
    before = use._sum_own_seconds()
    sum(n * n for n in range(2_000_000))
    assert use._sum_own_seconds() > before
