"""Counters of accelerators by recorded answers: those that all ranks of a node drive, or none."""

import importlib
from collections.abc import Sequence
from ctypes import Structure, c_int32, c_ubyte, c_uint32, c_uint64, c_void_p
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cepheid.reference.machine import counters, energy
from cepheid.reference.machine.counters import Keys, find_counters
from cepheid.reference.machine.ranks import SingleProcess

UUIDS = [f"GPU-8f3b{number:04x}-77aa-1c0d-9d3e-5a1b2c3d4e5f" for number in range(8)]
BUSES = ["1B", "43", "52", "61", "9D", "C3", "D1", "DF"]  # of a DGX H100


class NVMLError(Exception):
    """As the bindings have it."""


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


def test_a_part_of_the_gpus_is_not_taken_for_all(vendors: dict[str, Any], tmp_path: Path) -> None:
    vendors["pynvml"] = nvml(4)
    used = [(uuid,) for uuid in UUIDS]  # a container shows four of eight to the first rank
    sensors = energy.find_sensors(tmp_path, has_gpu=True, used=used)
    assert "sensors know 4 of the 8 that the ranks use" in sensors.reason_for_none
    assert "GPUs" in sensors.not_measured


def test_keys_that_no_tool_shares_count_where_all_are_used(vendors: dict[str, Any]) -> None:
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


class Address(Structure):
    """As ``zes_pci_address_t``, a part of the next one."""

    _fields_ = [(name, c_uint32) for name in ("domain", "bus", "device", "function")]


class Place(Structure):
    """As ``zes_pci_properties_t``, as far as it is read."""

    _fields_ = [("stype", c_int32), ("pNext", c_void_p), ("address", Address)]


class Power(Structure):
    """As ``zes_power_properties_t``, as far as it is read."""

    _fields_ = [("stype", c_int32), ("pNext", c_void_p), ("onSubdevice", c_ubyte)]


class Domain(Structure):
    """As ``zes_power_ext_properties_t``, as far as it is read."""

    _fields_ = [("stype", c_int32), ("pNext", c_void_p), ("domain", c_int32)]


class Energy(Structure):
    """As ``zes_power_energy_counter_t``: microjoules and microseconds."""

    _fields_ = [("energy", c_uint64), ("timestamp", c_uint64)]


class LevelZero:
    """As much of pyzes as is asked: cards on one driver, each with counters of power domains.

    A counter is the number of its card, its domain, and 1 where it counts a tile of the card.
    """

    zes_driver_handle_t = zes_device_handle_t = zes_pwr_handle_t = c_uint32
    zes_pci_properties_t, zes_power_properties_t = Place, Power
    zes_power_ext_properties_t, zes_power_energy_counter_t = Domain, Energy
    ZES_STRUCTURE_TYPE_PCI_PROPERTIES, ZES_STRUCTURE_TYPE_POWER_PROPERTIES = 0x2, 0xD
    ZES_STRUCTURE_TYPE_POWER_EXT_PROPERTIES = 0x28

    def __init__(self, *cards: Sequence[int], failing: str = "") -> None:
        self.cards, self.failing = cards, failing

    def fill(self, name: str, values: Sequence[int], count: Any, handles: Any) -> int:
        """Tell how many values there are, and then tell them."""
        if handles:
            handles[: len(values)] = values
        count._obj.value = len(values)
        return 0x78000003 if name == self.failing else 0

    def zesInit(self, flags: int) -> int:  # noqa: N802
        return 0x70000001 if self.failing == "zesInit" else 0

    def zesDriverGet(self, *told: Any) -> int:  # noqa: N802
        return self.fill("zesDriverGet", [7], *told)

    def zesDeviceGet(self, driver: int, *told: Any) -> int:  # noqa: N802
        assert driver == 7
        return self.fill("zesDeviceGet", range(len(self.cards)), *told)

    def zesDevicePciGetProperties(self, device: int, place: Any) -> int:  # noqa: N802
        assert place._obj.stype == self.ZES_STRUCTURE_TYPE_PCI_PROPERTIES
        place._obj.address = Address(0, 0x3A + device, 0, 0)
        return 0

    def zesDeviceEnumPowerDomains(self, device: int, *told: Any) -> int:  # noqa: N802
        return self.fill("zesDeviceEnumPowerDomains", self.cards[device], *told)

    def zesPowerGetProperties(self, counter: int, told: Any) -> int:  # noqa: N802
        Domain.from_address(told._obj.pNext).domain = counter // 10 % 10
        told._obj.onSubdevice = counter % 10
        return 0

    def zesPowerGetEnergyCounter(self, counter: int, told: Any) -> int:  # noqa: N802
        told._obj.energy = counter * 1_000_000
        return 0x78000003 if self.failing == "zesPowerGetEnergyCounter" else 0


def test_intel_where_a_container_hides_what_linux_knows(vendors: dict[str, Any]) -> None:
    """A card with its package and a tile, one of packages alone, and one that nobody uses."""
    vendors["pyzes"] = LevelZero([120, 111, 110], [220, 221], [310])
    found, why = find_counters([("0000:3a:00.0",), ("0000:3b:00.0",)])
    assert not why
    assert [counter.name for counter in found] == ["gpu0", "gpu1"]
    assert [counter.read() for counter in found] == [110.0, 220.0]


@pytest.mark.parametrize(
    ("cards", "failing", "says"),
    [
        ([110], "zesInit", "pyzes: zesInit returned 0x70000001"),
        ([110], "zesDeviceGet", "zesDeviceGet returned 0x78000003"),
        ([110], "zesPowerGetEnergyCounter", "zesPowerGetEnergyCounter returned"),
        ([111, 140], "", "0000:3a:00.0 has no counter of its energy"),
    ],
)
def test_level_zero_that_fails_is_a_reason(
    cards: Sequence[int], failing: str, says: str, vendors: dict[str, Any]
) -> None:
    vendors["pyzes"] = LevelZero(cards, failing=failing)
    found, why = find_counters([("0000:3a:00.0",)])
    assert not found
    assert says in why


@pytest.mark.parametrize("broken", ["init", "counter"])
def test_a_vendor_that_fails_is_a_reason(broken: str, vendors: dict[str, Any]) -> None:
    def fail(*arguments: object) -> None:
        raise NVMLError("no permission")

    vendors["amdsmi"] = amdsmi()
    name = "amdsmi_init" if broken == "init" else "amdsmi_get_energy_count"
    setattr(vendors["amdsmi"], name, fail)
    found, why = find_counters([("0000:04:00.0",)])
    assert not found
    assert "amdsmi: no permission" in why


def test_nothing_is_installed() -> None:
    found, why = find_counters([("0000:04:00.0",)])
    assert not found
    assert why.startswith("GPUs: pynvml is not installed")


def test_keras_knows_no_keys() -> None:
    assert not SingleProcess("keras", "GPU").device_keys


def test_torch_names_a_gpu_as_its_tools_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # of the imports
    torch = pytest.importorskip("torch", reason="needs the extra torch")
    from cepheid.reference.torch.devices.kinds import find_device

    facts = SimpleNamespace(
        uuid=UUIDS[0].removeprefix("GPU-"), pci_domain_id=0, pci_bus_id=27, pci_device_id=0
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda place: facts)
    device = find_device(torch.device("cuda", 0))
    assert device.sensor_keys == [facts.uuid, "0000:1b:00.0"]
    assert device.identity == facts.uuid
