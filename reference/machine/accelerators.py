"""The accelerators of this machine, as their vendors' own tools describe them.

NVML (extra ``energy``) knows those of NVIDIA, ``rocm-smi`` those of AMD and ``xpu-smi`` those of
Intel. The code for AMD and Intel was tested with recorded answers only.
"""

import importlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cepheid.rules.errors import UserError

DEVICE, DEVICE_MODULE = "CEPHEID_DEVICE", "CEPHEID_DEVICE_MODULE"
"""The variables that name the device of all ranks, and the file with a vendor's own device."""
DEVICE_HELP = (
    "what torch computes on: cpu, cuda (NVIDIA and AMD), xpu, mps, or the kind of a vendor's own "
    f"device. auto (default, or ${DEVICE}): an accelerator where torch can use one"
)
MODULE_HELP = (
    f"a Python file with a vendor's own device (docs/your-device.md); default: ${DEVICE_MODULE}"
)

TOOL_SECONDS = 30
NVLINKS_MAX = 36


def use_device(asked: Any) -> None:
    """Let this process, and those that it starts, compute on the device of a command line.

    Raises UserError where the framework that is ``asked`` for does not heed it.
    """
    framework = getattr(asked, "framework", "torch")
    if framework != "torch" and (asked.device or asked.device_module):
        raise UserError(
            f"--device chooses a device of torch; --framework {framework} takes what it finds; "
            "fix: leave --device and --device-module out"
        )
    if asked.device:
        os.environ[DEVICE] = asked.device
    if asked.device_module:
        os.environ[DEVICE_MODULE] = str(asked.device_module.resolve())


@dataclass(frozen=True)
class Accelerators:
    """All accelerators of one machine; a field that could not be read is empty."""

    count: int
    name: str
    memory_gib: float | None = None
    driver: str = ""
    interconnect: str = ""
    max_watts: float | None = None  # the limit of the power of one

    def __str__(self) -> str:
        return f"{self.count} × {self.name}{f', {self.driver}' if self.driver else ''}"


def find_accelerators() -> Accelerators | None:
    """Return the accelerators of the first vendor whose tool finds any, or None."""
    return next(filter(None, (find() for find, _ in _list_finders())), None)


def find_offered(environment: Mapping[str, str]) -> Accelerators | None:
    """Return the same, but for those that a variable of their vendor hides from this process."""
    for find, variables in _list_finders():
        texts = [environment[name].strip() for name in variables if name in environment]
        if not any(map(_HIDES_ALL.fullmatch, texts)) and (found := find()):
            return found
    return None


_HIDES_ALL = re.compile(r"|-1.*|NoDevFiles|void|none|[^g]*:cpu", re.IGNORECASE)


def find_nvidia() -> Accelerators | None:
    """Return the GPUs that NVML finds, or None."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except ImportError:
        return _ask_nvidia_smi()
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
            name=_decode(nvml.nvmlDeviceGetName(device)),
            memory_gib=round(nvml.nvmlDeviceGetMemoryInfo(device).total / 2**30, 1),
            driver=f"NVIDIA {_decode(nvml.nvmlSystemGetDriverVersion())} "
            f"(CUDA {cuda // 1000}.{cuda % 1000 // 10})",
            interconnect=_describe_links(nvml, device) if count > 1 else "",
            max_watts=_read_limit(nvml, device),
        )
    finally:
        nvml.nvmlShutdown()


def _read_limit(nvml: Any, device: Any) -> float | None:
    """Return the limit of the power of a GPU in watts, None where it tells none."""
    try:
        return float(nvml.nvmlDeviceGetEnforcedPowerLimit(device)) / 1000
    except nvml.NVMLError:  # not of this GPU
        return None


def _read_watts(text: str) -> float | None:
    return float(text) if re.fullmatch(r"\d{1,5}(\.\d+)?", text) else None


def _ask_nvidia_smi() -> Accelerators | None:
    """Return the GPUs that the driver's own tool lists, or None."""
    asked = "--query-gpu=name,memory.total,driver_version,power.limit"
    answer = _run_tool("nvidia-smi", asked, "--format=csv,noheader,nounits")
    gpus = [line.split(", ") for line in answer.splitlines()]
    gpus = [gpu for gpu in gpus if len(gpu) == 4]
    if not gpus:
        return None
    name, mib, driver, watts = gpus[0]
    memory = round(int(mib) / 1024, 1) if mib.isdecimal() else None
    return Accelerators(len(gpus), name, memory, f"NVIDIA {driver}", "", _read_watts(watts))


def _describe_links(nvml: Any, device: Any) -> str:
    """Return how many NVLinks of a GPU are up, or PCIe if none is."""
    active = 0
    for link in range(NVLINKS_MAX):
        try:
            active += bool(nvml.nvmlDeviceGetNvLinkState(device, link))
        except nvml.NVMLError:  # no such link
            break
    return f"NVLink, {active} links per GPU" if active else "PCIe"


def find_amd() -> Accelerators | None:
    """Return the GPUs that ``rocm-smi`` finds, or None.

    Its answer has an object ``card<n>`` for each GPU.
    """
    asked = ("--showproductname", "--showmeminfo", "vram", "--showdriverversion", "--showmaxpower")
    answer = _ask_tool("rocm-smi", *asked, "--json")
    cards = [answer[key] for key in sorted(answer) if re.fullmatch(r"card\d+", key)]
    if not cards:
        return None
    first = {key.lower(): str(value) for key, value in cards[0].items()}
    memory = first.get("vram total memory (b)", "")
    driver = str(answer.get("system", {}).get("Driver version", ""))
    return Accelerators(
        count=len(cards),
        name=f"AMD {first.get('card series') or first.get('card model') or 'GPU'}",
        memory_gib=round(int(memory) / 2**30, 1) if memory.isdecimal() else None,
        driver=f"amdgpu {driver}" if driver else "",
        max_watts=_read_watts(first.get("max graphics package power (w)", "")),
    )


def find_intel() -> Accelerators | None:
    """Return the GPUs that ``xpu-smi discovery`` finds, or None."""
    devices = _ask_tool("xpu-smi", "discovery", "-j").get("device_list", [])
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


def _run_tool(*command: str) -> str:
    """Return what a tool prints, "" if it is missing or fails."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=TOOL_SECONDS, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError, ValueError):
        return ""


def _ask_tool(*command: str) -> dict[str, Any]:
    """Return the JSON object that a tool prints, or an empty one if it is missing or fails."""
    try:
        answer = json.loads(_run_tool(*command))
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _decode(text: str | bytes) -> str:
    return text.decode() if isinstance(text, bytes) else text  # older bindings give bytes


def _list_finders() -> Sequence[tuple[Callable[[], Accelerators | None], Sequence[str]]]:
    """List what finds the accelerators of each vendor, and the variables that may hide them."""
    return (
        (find_nvidia, ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")),
        (find_amd, ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
        (find_intel, ("ONEAPI_DEVICE_SELECTOR", "ZE_AFFINITY_MASK")),
    )
