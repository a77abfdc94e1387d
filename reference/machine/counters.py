"""Energy counters of accelerators: NVML of NVIDIA, amdsmi of AMD, hwmon for Intel.

Each accelerator has a counter, and keys by which it is told from others: its UUID and its address
on the PCI bus. The ranks of a node name the accelerators that they drive by the same keys, so that
all of them are counted, also where each rank sees one alone.
"""

import importlib
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cepheid.rules import extras

HWMON = Path("/sys/class/hwmon")
HWMON_NAMES = {"i915", "xe"}  # of whole cards; i915_gt0 counts a part of one once more
VISIBLE = "CUDA_VISIBLE_DEVICES"
Keys = Sequence[str]


@dataclass(frozen=True)
class Counter:
    """An energy counter in joules that starts again at 0 when it reaches ``wraps_joules``."""

    name: str
    read: Callable[[], float]
    wraps_joules: float = math.inf


@dataclass(frozen=True)
class Found:
    """The counters of all accelerators of a machine, each with its keys, or why there are none."""

    counters: Sequence[tuple[Counter, Keys]] = ()
    why_none: str = ""


def normalise(key: str) -> str:
    """Return a UUID or an address on the PCI bus as all vendors' tools would write it."""
    return re.sub(r"^0000(?=[0-9a-f]{4}:)", "", key.lower().removeprefix("gpu-"))


def find_counters(used: Sequence[Keys], hwmon: Path = HWMON) -> tuple[tuple[Counter, ...], str]:
    """Return the counters of the accelerators with the keys in ``used``, or why there are none.

    All are counted or none: a part of them would be taken for the whole. Where nobody knows the
    keys, as in Keras, the accelerators that this process may use are counted.
    """
    reasons = []
    for find in (_ask_nvml, _ask_amd, lambda: _read_hwmon(hwmon)):
        found = find()
        if found.counters:
            return _choose(found.counters, {tuple(map(normalise, keys)) for keys in used})
        reasons += [found.why_none] if found.why_none else []
    return (), f"GPUs: {'; '.join(reasons)}"


def _choose(
    offered: Sequence[tuple[Counter, Keys]], used: set[tuple[str, ...]]
) -> tuple[tuple[Counter, ...], str]:
    """Return the counters of what is used; all where as many are used as there are."""
    known = [(counter, set(map(normalise, keys))) for counter, keys in offered]
    if not any(used):
        chosen = [counter for counter, keys in known if _is_visible(counter, keys, os.environ)]
        return tuple(chosen), "" if chosen else f"GPUs: {VISIBLE} hides all"
    chosen = [counter for counter, keys in known if any(keys & set(each) for each in used)]
    if len(chosen) < len(used):
        if len(known) != len(used):
            return (), f"GPUs: sensors know {len(chosen)} of the {len(used)} that the ranks use"
        chosen = [counter for counter, _ in known]
    return tuple(chosen), ""


def _is_visible(counter: Counter, keys: set[str], environment: Mapping[str, str]) -> bool:
    """Return whether this process may use an accelerator, by its number or UUID."""
    if VISIBLE not in environment:
        return True
    names = {normalise(name.strip()) for name in environment[VISIBLE].split(",")}
    return bool(names & {*keys, counter.name.removeprefix("gpu")})


def _ask_nvml() -> Found:
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return Found((), extras.explain_missing("pynvml"))
    try:
        nvml.nvmlInit()
        return Found(list(_list_nvml(nvml)), "NVML shows none")
    except nvml.NVMLError as error:
        return Found((), str(error))


def _list_nvml(nvml: Any) -> Iterator[tuple[Counter, Keys]]:
    for number in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(number)

        def read(handle: Any = handle) -> float:
            return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) / 1000

        read()
        names = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetPciInfo(handle).busId
        keys = [name.decode() if isinstance(name, bytes) else name for name in names]
        yield Counter(f"gpu{number}", read), keys


def _ask_amd() -> Found:
    try:
        amd = importlib.import_module("amdsmi")
    except (ImportError, KeyError, OSError):  # it looks for the driver's library on import
        return Found()
    try:
        amd.amdsmi_init()
        return Found(list(_list_amd(amd)), "amdsmi shows none")
    except amd.AmdSmiException as error:
        return Found((), f"amdsmi: {error}")


def _list_amd(amd: Any) -> Iterator[tuple[Counter, Keys]]:
    for number, handle in enumerate(amd.amdsmi_get_processor_handles()):

        def read(handle: Any = handle) -> float:
            now = amd.amdsmi_get_energy_count(handle)
            ticks = now["energy_accumulator"] if "energy_accumulator" in now else now["power"]
            return float(ticks) * float(now["counter_resolution"]) / 1e6  # microjoules each

        read()
        keys = amd.amdsmi_get_gpu_device_uuid(handle), amd.amdsmi_get_gpu_device_bdf(handle)
        yield Counter(f"gpu{number}", read), keys


def _read_hwmon(root: Path) -> Found:
    """Return the counters of Intel's drivers, in microjoules: of the card, else of its package."""
    counters: list[tuple[Counter, Keys]] = []
    for folder in sorted(root.glob("hwmon*"), key=lambda each: int(each.name[5:] or 0)):
        try:
            if (folder / "name").read_text(encoding="ascii").strip() not in HWMON_NAMES:
                continue
            files = [folder / f"energy{number}_input" for number in (1, 2)]
            file = next(each for each in files if each.exists())

            def read(file: Path = file) -> float:
                return int(file.read_text(encoding="ascii")) / 1e6

            read()
        except (OSError, StopIteration) as error:
            return Found((), f"{folder}: {error or 'no counter of energy'}")
        address = (folder / "device").resolve().name
        counters.append((Counter(f"gpu{len(counters)}", read), (address,)))
    return Found(counters)
