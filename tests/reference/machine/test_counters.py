"""Counters of accelerators by recorded answers: those that all ranks of a node drive, or none."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cepheid.reference.machine import counters, energy
from cepheid.reference.machine.counters import Keys, find_counters
from tests.reference.machine.test_hardware import NVMLError

UUIDS = [f"GPU-8f3b{number:04x}-77aa-1c0d-9d3e-5a1b2c3d4e5f" for number in range(8)]
BUSES = ["1B", "43", "52", "61", "9D", "C3", "D1", "DF"]  # of a DGX H100


def nvml(count: int = 8) -> SimpleNamespace:
    """As much of NVML's bindings as is asked."""
    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: count,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetUUID=lambda number: UUIDS[number],
        nvmlDeviceGetPciInfo=lambda number: SimpleNamespace(
            busId=b"00000000:%s:00.0" % BUSES[number].encode()
        ),
        nvmlDeviceGetTotalEnergyConsumption=lambda number: 1500 * (number + 1),
    )


def amdsmi(key: str = "energy_accumulator") -> SimpleNamespace:
    """As much of AMD's bindings as is asked; earlier ones call the counter ``power``."""
    return SimpleNamespace(
        AmdSmiException=NVMLError,
        amdsmi_init=lambda: None,
        amdsmi_get_processor_handles=lambda: ["a", "b"],
        amdsmi_get_energy_count=lambda handle: {key: 2_000_000, "counter_resolution": 15.3},
        amdsmi_get_gpu_device_uuid=lambda handle: f"{handle}7ff74b5-0000-1000-80cc-25b5a5b0b0c6",
        amdsmi_get_gpu_device_bdf=lambda handle: f"0000:0{'ab'.index(handle) + 3}:00.0",
    )


@pytest.fixture(autouse=True)
def vendors(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Only what a test installs is there."""
    installed: dict[str, Any] = {}

    def load(name: str) -> Any:
        if name not in installed:
            raise ImportError(name)
        return installed[name]

    monkeypatch.setattr(importlib, "import_module", load)
    monkeypatch.setattr(counters, "HWMON", Path("/nowhere"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return installed


def name_counters(used: Sequence[Keys]) -> list[str]:
    found, _ = find_counters(used, Path("/nowhere"))
    return [counter.name for counter in found]


@pytest.mark.parametrize(
    ("visible", "names"),
    [(None, ["gpu0", "gpu1"]), ("1", ["gpu1"]), (UUIDS[0], ["gpu0"]), ("", [])],
)
def test_gpus_that_a_process_may_use_where_nobody_knows_which_it_uses(
    visible: str | None,
    names: Sequence[str],
    vendors: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vendors["pynvml"] = nvml(2)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    sensors = energy.find_sensors(tmp_path, has_gpu=True, used=[()])
    assert [counter.name for counter in sensors.counters] == names
    assert [counter.read() for counter in sensors.counters] == [
        1.5 * (1 + int(name[-1])) for name in names
    ]
    assert ("GPUs" in sensors.not_measured) == (not names)


@pytest.mark.parametrize("visible", [None, "0"])
@pytest.mark.parametrize("way", ["uuid", "address"])
def test_all_gpus_of_the_ranks_are_counted_where_each_sees_one(
    way: str, visible: str | None, vendors: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Slurm binds tasks (``--gpus-per-task=1``): the first rank reads those of all eight."""
    vendors["pynvml"] = nvml()
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    uuids = [(uuid.removeprefix("GPU-"),) for uuid in UUIDS]  # as torch says
    used = uuids if way == "uuid" else [(f"0000:{bus.lower()}:00.0",) for bus in BUSES]
    assert name_counters(used) == [f"gpu{number}" for number in range(8)]
    assert name_counters(used[2:4]) == ["gpu2", "gpu3"]
    assert name_counters([used[5], used[5]]) == ["gpu5"]  # two ranks on one


def test_a_part_of_the_gpus_is_not_taken_for_all_and_unknown_keys_only_for_all(
    vendors: dict[str, Any], tmp_path: Path
) -> None:
    vendors["pynvml"] = nvml(4)
    used = [(uuid,) for uuid in UUIDS]  # a container shows four of eight to the first rank
    sensors = energy.find_sensors(tmp_path, has_gpu=True, used=used)
    assert "sensors know 4 of the 8 that the ranks use" in sensors.reason_for_none
    assert "GPUs" in sensors.not_measured
    del vendors["pynvml"]  # keys that no tool shares count where all are used
    vendors["amdsmi"] = amdsmi()
    assert name_counters([("strange-1",), ("strange-2",)]) == ["gpu0", "gpu1"]
    assert name_counters([("strange-1",)]) == []


@pytest.mark.parametrize("key", ["energy_accumulator", "power"])
def test_amd(key: str, vendors: dict[str, Any]) -> None:
    vendors["amdsmi"] = amdsmi(key)
    found, _ = find_counters([("0000:04:00.0",)])
    (counter,) = found
    assert counter.name == "gpu1"
    assert counter.read() == pytest.approx(30.6)


def hwmon(root: Path, number: int, name: str, address: str, **files: str) -> None:
    device = root / "devices" / address
    device.mkdir(parents=True, exist_ok=True)
    folder = root / f"hwmon{number}"
    folder.mkdir()
    (folder / "device").symlink_to(device)
    for file, text in {"name": name, **files}.items():
        (folder / file).write_text(f"{text}\n")


def test_intel(tmp_path: Path) -> None:
    """A card, a card of the newer driver with its package, a part of a card, and a disk."""
    hwmon(tmp_path, 0, "nvme", "0000:01:00.0")
    hwmon(tmp_path, 2, "i915", "0000:3a:00.0", energy1_input="5000000")
    hwmon(tmp_path, 3, "i915_gt0", "0000:3a:00.0", energy1_input="4000000")
    hwmon(tmp_path, 10, "xe", "0000:9b:00.0", energy1_input="7000000", energy2_input="6000000")
    hwmon(tmp_path, 11, "xe", "0000:9c:00.0", energy2_input="8000000")
    used = [("0000:3a:00.0",), ("0000:9b:00.0",), ("0000:9c:00.0",)]
    found, _ = find_counters(used, tmp_path)
    assert [counter.read() for counter in found] == [5.0, 7.0, 8.0]
    (one,) = find_counters(used[2:], tmp_path)[0]
    assert one.name == "gpu2"
