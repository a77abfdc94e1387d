"""Accelerators as their vendors' tools tell them: made-up bindings and recorded answers."""

import dataclasses
import importlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from cepheid.reference.machine import accelerators
from cepheid.reference.machine.accelerators import Accelerators

AMD = {
    "card0": {"VRAM Total Memory (B)": "206141652992", "Card Series": "Instinct MI300X"},
    "card1": {"VRAM Total Memory (B)": "206141652992", "Card Series": "Instinct MI300X"},
    "system": {"Driver version": "6.7.0"},
}
INTEL = {
    "device_list": [
        {"device_name": "Intel Max 1550", "memory_physical_size_byte": "137438953472"},
    ]
}


class NVMLError(Exception):
    """As the bindings have it."""


def nvml(count: int = 2, links: int = 4) -> SimpleNamespace:
    """As much of NVML's bindings as is asked."""

    def link(device: object, number: int) -> int:
        if number >= links:
            raise NVMLError
        return 1

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: count,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda device: b"NVIDIA H100",
        nvmlDeviceGetMemoryInfo=lambda device: SimpleNamespace(total=80 * 2**30),
        nvmlSystemGetDriverVersion=lambda: "550.54",
        nvmlSystemGetCudaDriverVersion=lambda: 12040,
        nvmlDeviceGetNvLinkState=link,
    )


def no_driver() -> None:
    raise NVMLError


def test_nvidia(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib, "import_module", lambda name: nvml())
    driver = "NVIDIA 550.54 (CUDA 12.4)"
    expected = Accelerators(2, "NVIDIA H100", 80.0, driver, "NVLink, 4 links per GPU")
    assert accelerators.find_nvidia() == expected
    monkeypatch.setattr(importlib, "import_module", lambda name: nvml(links=0))
    assert accelerators.find_accelerators() == dataclasses.replace(expected, interconnect="PCIe")


def test_no_nvidia(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = nvml()
    absent.nvmlInit = no_driver
    for found in (absent, nvml(count=0)):
        monkeypatch.setattr(importlib, "import_module", lambda name, found=found: found)
        assert accelerators.find_nvidia() is None


@pytest.mark.parametrize(
    ("tool", "answer", "expected"),
    [
        ("rocm-smi", AMD, Accelerators(2, "AMD Instinct MI300X", 192.0, "amdgpu 6.7.0")),
        ("xpu-smi", INTEL, Accelerators(1, "Intel Max 1550", 128.0)),
        ("rocm-smi", {}, None),
        ("xpu-smi", ["unexpected"], None),
    ],
)
def test_a_vendors_tool(
    tool: str, answer: object, expected: Accelerators | None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    program = tmp_path / tool
    program.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(accelerators, "find_nvidia", lambda: None)
    assert accelerators.find_accelerators() == expected


def test_a_tool_that_fails_finds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rocm-smi").write_text("#!/bin/sh\necho no driver; exit 1\n")
    (tmp_path / "rocm-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert accelerators.find_amd() is None
