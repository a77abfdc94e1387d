"""The accelerators of this machine, as their vendors' own tools tell them.

NVIDIA's by NVML (extra ``energy``), AMD's by ``rocm-smi``, Intel's by ``xpu-smi``, where these are
installed. Those of AMD and Intel were tried with recorded answers only.
"""

import importlib
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

TOOL_SECONDS = 30
NVLINKS_MAX = 36


@dataclass(frozen=True)
class Accelerators:
    """All of one machine. Fields are empty where nothing tells them."""

    count: int
    name: str
    memory_gib: float | None = None
    driver: str = ""
    interconnect: str = ""


def found() -> Accelerators | None:
    """Those of the first vendor whose tool finds any; None where none does."""
    return next(filter(None, (ask() for ask in (nvidia, amd, intel))), None)


def nvidia() -> Accelerators | None:
    """By NVML."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except ImportError:
        return None
    except nvml.NVMLError:  # no driver, no GPU, no permission
        return None
    try:
        count = nvml.nvmlDeviceGetCount()
        if not count:
            return None
        device = nvml.nvmlDeviceGetHandleByIndex(0)
        cuda = nvml.nvmlSystemGetCudaDriverVersion()
        return Accelerators(
            count=count,
            name=_decoded(nvml.nvmlDeviceGetName(device)),
            memory_gib=round(nvml.nvmlDeviceGetMemoryInfo(device).total / 2**30, 1),
            driver=f"NVIDIA {_decoded(nvml.nvmlSystemGetDriverVersion())} "
            f"(CUDA {cuda // 1000}.{cuda % 1000 // 10})",
            interconnect=_nvlink(nvml, device) if count > 1 else "",
        )
    finally:
        nvml.nvmlShutdown()


def _nvlink(nvml: Any, device: Any) -> str:
    """How many NVLinks of a GPU are up, else PCIe."""
    active = 0
    for link in range(NVLINKS_MAX):
        try:
            active += bool(nvml.nvmlDeviceGetNvLinkState(device, link))
        except nvml.NVMLError:  # no such link
            break
    return f"NVLink, {active} links per GPU" if active else "PCIe"


def amd() -> Accelerators | None:
    """By ``rocm-smi``, whose answer has an object ``card<n>`` for each GPU."""
    told = _asked(
        "rocm-smi", "--showproductname", "--showmeminfo", "vram", "--showdriverversion", "--json"
    )
    cards = [told[key] for key in sorted(told) if re.fullmatch(r"card\d+", key)]
    if not cards:
        return None
    first = {key.lower(): str(value) for key, value in cards[0].items()}
    memory = first.get("vram total memory (b)", "")
    driver = str(told.get("system", {}).get("Driver version", ""))
    return Accelerators(
        count=len(cards),
        name=f"AMD {first.get('card series') or first.get('card model') or 'GPU'}",
        memory_gib=round(int(memory) / 2**30, 1) if memory.isdecimal() else None,
        driver=f"amdgpu {driver}" if driver else "",
    )


def intel() -> Accelerators | None:
    """By ``xpu-smi discovery``."""
    devices = _asked("xpu-smi", "discovery", "-j").get("device_list", [])
    if not devices:
        return None
    first = devices[0]
    memory = str(first.get("memory_physical_size_byte", ""))
    return Accelerators(
        count=len(devices),
        name=str(first.get("device_name", "Intel GPU")),
        memory_gib=round(int(memory) / 2**30, 1) if memory.isdecimal() else None,
        driver=f"Intel {first['driver_version']}" if "driver_version" in first else "",
    )


def _asked(*command: str) -> dict[str, Any]:
    """The JSON object that a tool prints; an empty one where it is missing or fails."""
    if shutil.which(command[0]) is None:
        return {}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TOOL_SECONDS, check=True
        )
        answer = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _decoded(text: str | bytes) -> str:
    return text.decode() if isinstance(text, bytes) else text  # older bindings give bytes
