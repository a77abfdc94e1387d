"""Readings of power that are made of other ones, or too much, are found; honest meters pass."""

import math
import random
import re
import time
from array import array
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cepheid.compliance.checks.agreement import JsonSource
from cepheid.compliance.checks.registry import Described
from cepheid.compliance.checks.result.energy import _check_constant, _check_power
from cepheid.compliance.checks.result.readings import find_copies, list_readings
from cepheid.compliance.read.powerlog import PowerLog, Sensor

Watts = list[float]
LOADS: dict[str, Callable[[int], float]] = {
    "flat": lambda n: 300.0,
    "blocks and evaluations": lambda n: 100 if n < 5 else 420 if (n // 17) % 2 == 0 else 350,
    "a wave": lambda n: 300 + 100 * math.sin(2 * math.pi * n / 12),
    "a ramp": lambda n: 100.0 + n,
    "steps of four readings": lambda n: 400.0 if n % 4 < 2 else 250.0,
    "jagged": lambda n: 200.0 + (n * 37) % 101,
}


def measure(
    load: str, seed: object, readings: int = 120, decimals: int = 1, watts: float = 3
) -> Watts:
    noise = random.Random(f"{load} {seed}")
    read = (LOADS[load](n) + noise.gauss(0, watts) for n in range(readings))
    return [round(each, decimals) for each in read]


def make_power_log(watts: Watts) -> PowerLog:
    times = [500.0 * n for n in range(len(watts))]
    sensor = Sensor("node0", times, watts, range(3, 3 + len(watts)))
    return PowerLog(Path("power_0.csv"), "nothing", (sensor,))


def log(watts: Watts) -> "tuple[array[float], ...]":
    return list_readings(make_power_log(watts))


FORMS: dict[str, Callable[[Watts], Watts]] = {
    "as it is": lambda watts: watts,
    "an offset": lambda watts: [w + 37 for w in watts],
    "an offset below 0": lambda watts: [w - 90.25 for w in watts],
    "a factor": lambda watts: [0.93 * w for w in watts],
    "a factor, rounded": lambda watts: [round(0.93 * w, 1) for w in watts],
    "another unit": lambda watts: [1000 * w for w in watts],
    "kilowatts": lambda watts: [w / 1000 for w in watts],
    "factor and offset, rounded": lambda watts: [round(1.07 * w + 11.3, 1) for w in watts],
    "later": lambda watts: watts[23:],
    "later, after own readings": lambda watts: [*measure("flat", "own", 31), *watts[:80]],
    "later, changed and rounded": lambda watts: [round(0.9 * w + 5, 1) for w in watts[31:]],
    "every second one": lambda watts: watts[::2],
    "each of them twice": lambda watts: [w for w in watts for _ in range(2)],
    "rounded to whole watts": lambda watts: [float(round(w)) for w in watts],
    "changed, upside down": lambda watts: [700 - w for w in watts],
    "changed, backwards": lambda watts: watts[::-1],
    "changed, backwards and scaled": lambda watts: [round(0.9 * w + 5, 1) for w in watts[::-1]],
    "a twelfth changed": lambda watts: [w if n % 12 else w + 5 for n, w in enumerate(watts)],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("load", ["flat", "blocks and evaluations"])
def test_readings_of_another_log_are_found(load: str, form: str) -> None:
    original = measure(load, "original", 240 if form == "every second one" else 120, 3)
    logs = [log(measure(load, n)) for n in range(8)]
    assert list(find_copies(logs)) == []
    logs += [log(original), *(log(measure(load, n)) for n in range(8, 12))]
    assert list(find_copies([*logs, log(FORMS[form](original))])) == [(13, 8)]


COARSE = {  # whole watts: the noise of a meter, in watts, and how many readings it takes
    "a short run": (4, 20),
    "of a quiet meter": (1, 80),
    "of which most do not change": (0.5, 200),
}
UNROUNDED = [form for form in FORMS if not re.search("rounded|later|second|changed", form)]


@pytest.mark.parametrize("form", UNROUNDED)
@pytest.mark.parametrize("case", COARSE)
def test_coarse_or_few_readings_of_another_log_are_found(case: str, form: str) -> None:
    noise, count = COARSE[case]
    read = partial(measure, "flat", readings=count, decimals=0, watts=noise)
    logs = [log(read(n)) for n in range(8)]
    assert list(find_copies(logs)) == []
    logs += [log(read("original")), log(FORMS[form](read("original")))]
    assert list(find_copies(logs)) == [(9, 8)]


def test_readings_that_repeat_themselves_are_found_in_bounded_time() -> None:
    once = measure("flat", "once", 60)
    assert list(find_copies([log([*once, *once])])) == [(0, 0)]
    assert list(find_copies([log([*once, *(1.1 * w for w in once)])])) == [(0, 0)]
    # A meter that repeats a sequence has the same keys everywhere, and so do its other logs.
    logs = [log([300.0 + (7 * n) % 13 + n % 5 / 2 for n in range(2_000)]) for _ in range(40)]
    started = time.process_time()
    assert list(find_copies(logs)) == []
    assert time.process_time() - started < 20  # 1.4 s; without a bound it is minutes


LATE_NOISE = ((3, 0), (3, 3), (1, 0), (0, 0))  # tried at night


@pytest.mark.parametrize(
    ("watts", "decimals"),
    [(3, 1), (0.5, 0), *(pytest.param(*noise, marks=pytest.mark.slow) for noise in LATE_NOISE)],
)
@pytest.mark.parametrize("load", LOADS)
def test_the_same_load_with_own_noise_is_no_copy(load: str, watts: float, decimals: int) -> None:
    """Two runs of a benchmark load a machine alike; 0 of 163,800 pairs with noise were found."""
    for readings in (15, 60, 200):
        logs = [log(measure(load, n, readings, decimals, watts)) for n in range(12)]
        assert list(find_copies(logs)) == []


def test_readings_that_tell_nothing_are_no_copies() -> None:
    for watts in (
        [], [1.0], [5.0] * 300, [1.0, 2.0] * 150, [300.0 + n % 7 for n in range(300)],
        [0.0] * 100 + [1e8], [1e-7 * n for n in range(99)],
    ):  # fmt: skip
        assert list(find_copies([log(watts), log(watts)])) == []


def test_the_same_readings_again_and_again() -> None:
    for watts, codes in [
        ([700.0] * 60, ["T23.constant"]),
        ([350.0, 351.0] * 30, ["T23.periodic"]),
        ([300.0 + n % 32 for n in range(400)], ["T23.periodic"]),
        ([300.0 + 7 * n % 13 for n in range(61)], ["T23.periodic"]),  # ends within a period
        ([700.0] * 59, []),
        ([350.0, 351.0] * 29, []),  # a short run
        ([60.0, *[350.0, 351.0] * 100], []),  # idle at first
        ([*[350.0, 351.0] * 100, 351.0], []),  # out of step once
        ([420.0 if n % 40 else 350.0 for n in range(400)], []),  # evaluations of a steady run
        ([], []),
    ]:
        found = [*_check_constant([make_power_log(watts)])]
        assert [(f.code, f.severity) for f in found] == [(code, "warning") for code in codes]


NODE: dict[str, Any] = {"nodes": 1, "processor_cores_per_node": 64, "accelerators_per_node": 8}
LIMITED = {**NODE, "accelerator_max_watts": 700}
WAFER = {**NODE, "accelerators_per_node": 1, "accelerator_max_watts": 23_000}
TWO = {**LIMITED, "nodes": 2}


def counters(watts: float, count: int = 8, node: str = "") -> dict[str, float]:
    return {f"{node}gpu{number}": watts for number in range(count)}


def find_codes(system: Mapping[str, Any], watts: Mapping[str, float]) -> list[str]:
    sensors = tuple(
        Sensor(name, (0.0, 500.0, 1000.0), (mean - 5, mean, mean + 5), (3, 4, 5))
        for name, mean in watts.items()
    )
    source = JsonSource(Path("box.json"), system)
    described = Described(source, system["nodes"] * system["accelerators_per_node"])
    found = [*_check_power([PowerLog(Path("power_0.csv"), "nothing", sensors)], described)]
    assert {each.severity for each in found} <= {"warning"}
    return [each.code for each in found]


LIMITS: list[tuple[Mapping[str, Any], Mapping[str, float], list[str]]] = [
    (LIMITED, counters(780), ["T23.above_limit"]),
    (LIMITED, counters(6300, 1), ["T23.above_limit"]),
    (LIMITED, {**counters(780), "package-0": 200}, ["T23.above_limit"]),
    (TWO, counters(780, node="node0-") | counters(780, node="node1-"), ["T23.above_limit"]),
    (LIMITED, {"meter": 15_400}, ["T23.implausible"]),
    (LIMITED, counters(2000), ["T23.implausible"]),  # one mistake, one finding
    (WAFER, {"meter": 42_000}, ["T23.implausible"]),
    (LIMITED, counters(690), []),
    (LIMITED, counters(765), []),  # the accuracy of a counter
    (LIMITED, {**counters(690), "package-0": 350, "package-1": 350, "dram-0": 60}, []),
    (LIMITED, {**counters(0, 7), "gpu7": 1400}, []),  # one counter for the board of two
    (LIMITED, {"gpu0": 5600}, []),  # one for all
    (LIMITED, {"gpu-tray": 9000}, []),  # with its fans and losses
    (LIMITED, {"meter": 12_000}, []),
    (TWO, counters(690, node="node0-") | counters(690, node="node1-"), []),
    (WAFER, {"meter": 26_000}, []),
    (NODE, counters(2000), []),  # no limit is described
]


@pytest.mark.parametrize(("system", "watts", "codes"), LIMITS)
def test_power_stays_within_the_limits_of_devices(
    system: Mapping[str, Any], watts: Mapping[str, float], codes: list[str]
) -> None:
    assert find_codes(system, watts) == codes
    unlimited = {key: value for key, value in system.items() if key != "accelerator_max_watts"}
    assert "T23.above_limit" not in find_codes(unlimited, watts)
