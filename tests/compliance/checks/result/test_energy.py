"""The described limit of the power of accelerators bounds what sensors read (T23)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cepheid.compliance.checks.agreement import JsonSource
from cepheid.compliance.checks.registry import Described
from cepheid.compliance.checks.result.energy import _check_power
from cepheid.compliance.read.powerlog import PowerLog, Sensor

NODE: dict[str, Any] = {"nodes": 1, "processor_cores_per_node": 64, "accelerators_per_node": 8}
LIMITED = {**NODE, "accelerator_max_watts": 700}
WAFER = {**NODE, "accelerators_per_node": 1, "accelerator_max_watts": 23_000}
TWO = {**LIMITED, "nodes": 2}


def counters(watts: float, count: int = 8, node: str = "") -> dict[str, float]:
    return {f"{node}gpu{number}": watts for number in range(count)}


def find_codes(system: Mapping[str, Any], watts: Mapping[str, float]) -> list[str]:
    """Return the codes of what is found where sensors read these watts, on average."""
    sensors = tuple(
        Sensor(name, (0.0, 500.0, 1000.0), (mean - 5, mean, mean + 5), (3, 4, 5))
        for name, mean in watts.items()
    )
    source = JsonSource(Path("box.json"), system)
    described = Described(source, system["nodes"] * system["accelerators_per_node"])
    found = [*_check_power([PowerLog(Path("power_0.csv"), "nothing", sensors)], described)]
    assert {each.severity for each in found} <= {"warning"}
    return [each.code for each in found]


@pytest.mark.parametrize(
    ("system", "watts", "code"),
    [
        (LIMITED, counters(780), "T23.above_limit"),
        (LIMITED, counters(6300, 1), "T23.above_limit"),
        (LIMITED, {**counters(780), "package-0": 200}, "T23.above_limit"),
        (TWO, {**counters(780, node="node0-"), **counters(780, node="node1-")}, "T23.above_limit"),
        (LIMITED, {"meter": 15_400}, "T23.implausible"),
        (LIMITED, counters(2000), "T23.implausible"),  # one mistake, one finding
        (WAFER, {"meter": 42_000}, "T23.implausible"),
    ],
)
def test_more_than_the_limits_allow(
    system: Mapping[str, Any], watts: Mapping[str, float], code: str
) -> None:
    assert find_codes(system, watts) == [code]
    unlimited = {key: value for key, value in system.items() if key != "accelerator_max_watts"}
    assert "T23.above_limit" not in find_codes(unlimited, watts)


@pytest.mark.parametrize(
    ("system", "watts"),
    [
        (LIMITED, counters(690)),
        (LIMITED, counters(765)),  # the accuracy of a counter
        (LIMITED, {**counters(690), "package-0": 350, "package-1": 350, "dram-0": 60}),
        (LIMITED, {**counters(0, 7), "gpu7": 1400}),  # one counter for the board of two
        (LIMITED, {"gpu0": 5600}),  # one for all
        (LIMITED, {"gpu-tray": 9000}),  # with its fans and losses
        (LIMITED, {"meter": 12_000}),
        (TWO, {**counters(690, node="node0-"), **counters(690, node="node1-")}),
        (WAFER, {"meter": 26_000}),
        (NODE, counters(2000)),  # no limit is described
    ],
)
def test_what_the_limits_allow(system: Mapping[str, Any], watts: Mapping[str, float]) -> None:
    assert find_codes(system, watts) == []
