"""Energy of several nodes: all readings on one clock, in one power log."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cepheid.compliance.read import powerlog
from cepheid.reference.machine import node_energy
from cepheid.reference.machine.energy import Counter, Meter, Sensors, Trace
from cepheid.reference.machine.node_energy import Measured
from cepheid.reference.machine.ranks import SingleProcess

FIRST = Trace(
    ("package-0",), "storage", (10.0, 10.5, 11.0, 12.0), ((0.0,), (40.0,), (90.0,), (110.0,))
)
# Its clock is 490 s behind; it starts at 9.9 s on the clock of the first node.
SECOND = Trace(
    ("package-0", "gpu0"),
    "memory, storage",
    (500.0, 501.0, 502.0),
    ((0.0, 0.0), (50.0, 5.0), (100.0, 9.0)),
)


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
    return node_energy.gather(meter, ranks)


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


def test_a_node_without_sensors_is_named() -> None:
    measured = gather(other(None), other(SECOND))
    assert measured.not_measured == "node 1, storage, memory"
    assert measured.names == ("node0-package-0", "node2-package-0", "node2-gpu0")


def test_a_sensor_that_fails_on_any_node_ends_the_power_log() -> None:
    measured = gather(other(None, failure="OSError: gone"))
    assert measured.failure == "node 1: OSError: gone"
    assert measured.report(0, 1) == {"none": "a sensor failed during the run"}


def test_one_node_keeps_the_names_of_its_sensors() -> None:
    measured = gather(None)  # another rank on the same node
    assert measured.names == ("package-0",)
    assert measured.format_power_log().splitlines()[:3] == [
        "# not measured: storage", "monotonic_ms,package-0", "10000.000,80.000",
    ]  # fmt: skip


def test_rows_always_advance(tmp_path: Path) -> None:
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
        return node_energy.gather(meter, ranks).names


def test_ranks_gather_what_their_nodes_measured() -> None:
    pytest.importorskip("torch", reason="needs the extra torch")
    from tests.distributed import on_ranks

    assert on_ranks(2, _gather_on_rank) == [("node0-a", "node1-a")] * 2
