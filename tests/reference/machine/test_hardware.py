"""What a machine is made of, and how busy it is: made-up trees, tools and counters."""

import errno
import importlib
import json
import os
import platform
import sys
from collections import namedtuple
from dataclasses import replace
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from cepheid.reference.machine import accelerators, hardware
from cepheid.reference.machine.accelerators import Accelerators
from cepheid.reference.run import autotune
from cepheid.reference.run.autotune import OTHER_WORK, explain_few_threads

CPU = """processor\t: {thread}
model name\t: Example CPU 9000
physical id\t: {socket}
core id\t\t: {core}
"""
MOUNTS = """1 0 8:1 / / rw - ext4 /dev/sda1 rw
2 1 0:40 / /scratch rw - lustre server@tcp:/fs rw
3 1 259:0 / /fast\\040disk rw - xfs /dev/nvme0n1 rw
"""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two sockets of two cores of two threads, two nodes of memory, two disks, three networks."""
    threads = [(4 * s + 2 * c + t, s, c) for s in (0, 1) for c in (0, 1) for t in (0, 1)]
    blocks = (CPU.format(thread=t, socket=s, core=c) for t, s, c in threads)
    write(tmp_path / "proc/cpuinfo", "\n".join(blocks) + "\n")
    write(tmp_path / "proc/self/mountinfo", MOUNTS)
    for node in ("node0", "node1", "possible"):
        (tmp_path / "sys/devices/system/node" / node).mkdir(parents=True)
    write(tmp_path / "sys/class/dmi/id/sys_vendor", "Acme\n")
    write(tmp_path / "sys/class/dmi/id/product_name", "Default string\n")
    disk = tmp_path / "sys/devices/sda"
    write(disk / "queue/rotational", "1\n")
    write(disk / "size", "2097152\n")
    (disk / "sda1").mkdir()
    nvme = tmp_path / "sys/devices/nvme0n1"
    write(nvme / "queue/rotational", "0\n")
    write(nvme / "device/model", "Quick 9\n")
    write(nvme / "size", "4194304\n")
    numbers = tmp_path / "sys/dev/block"
    numbers.mkdir(parents=True)
    (numbers / "8:1").symlink_to(disk / "sda1")
    (numbers / "259:0").symlink_to(nvme)
    for card, state in (("mlx5_0", "4: ACTIVE"), ("mlx5_1", "4: ACTIVE"), ("mlx5_2", "1: DOWN")):
        port = tmp_path / "sys/class/infiniband" / card / "ports/1"
        write(port / "state", f"{state}\n")
        write(port / "rate", "400 Gb/sec (4X NDR)\n")
        write(port / "link_layer", "InfiniBand\n")
    write(tmp_path / "sys/class/net/eth0/speed", "25000\n")
    write(tmp_path / "sys/class/net/eth0/device/vendor", "0x1\n")
    write(tmp_path / "sys/class/net/docker0/speed", "10000\n")
    return tmp_path


def test_hardware_is_read_from_the_files_of_the_system(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 8 if logical else 4)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=32 * 2**30))
    assert hardware.read_hardware(Path("/home/data"), root) == {
        "machine": "Acme",
        "processor": "Example CPU 9000",
        "processor_sockets_per_node": 2,
        "processor_cores_per_node": 4,
        "processor_threads_per_node": 8,
        "memory_gib_per_node": 32.0,
        "numa_nodes_per_node": 2,
        "storage": "ext4 on sda1 (1 GiB)",
        "interconnect": "2x InfiniBand (RDMA) 400 Gb/sec (4X NDR); 1x Ethernet 25 Gb/s",
    }


@pytest.mark.parametrize(
    ("data", "storage"),
    [
        ("/fast disk/sky", "xfs on Quick 9 nvme0n1 (solid state, 2 GiB)"),
        ("/scratch", "lustre (server@tcp:/fs)"),
        ("/scratched", "ext4 on sda1 (1 GiB)"),
    ],
)
def test_storage_is_that_of_the_data(data: str, storage: str, root: Path) -> None:
    assert hardware.read_hardware(Path(data), root)["storage"] == storage


def test_a_container_that_may_not_look_at_its_disk(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if "sys/dev/block" in str(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, *arguments, **options)

    stat = os.stat
    monkeypatch.setattr(os, "stat", refuse)
    assert hardware.read_hardware(Path("/home/data"), root)["storage"] == "ext4 (/dev/sda1)"


def test_facts_that_cannot_be_read_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hardware.read_hardware(tmp_path, tmp_path).keys() == {
        "processor", "processor_cores_per_node", "processor_threads_per_node",
        "memory_gib_per_node",
    }  # fmt: skip
    monkeypatch.setattr(platform, "freedesktop_os_release", Mock(side_effect=FileNotFoundError))
    assert hardware.read_operating_system().startswith("Linux ")


def test_differences_name_the_nodes() -> None:
    alike = {"driver": "550", "processor": "A"}
    nodes = dict.fromkeys("abcd", alike) | {"e": {"driver": "535", "processor": "A"}}
    assert hardware.find_differences(nodes) == ["driver: 550 (a, b, c and 1 more), 535 (e)"]
    assert hardware.find_differences({"a": alike}) == []
    assert hardware.find_differences({"a": alike, "b": {"processor": "A"}}) == [
        "driver: 550 (a), nothing (b)"
    ]


@pytest.mark.parametrize(
    ("name", "told"),
    [("AMD EPYC", "AMD EPYC (family 26, model 2)"), ("Example CPU 9000", "Example CPU 9000")],
)
def test_a_name_without_a_model_gets_its_numbers(name: str, told: str, tmp_path: Path) -> None:
    text = f"cpu family : 26\nmodel : 2\nmodel name : {name}\n"
    write(tmp_path / "proc/cpuinfo", f"{text}\n{text.replace('2', '3')}")
    assert hardware.read_hardware(tmp_path, tmp_path)["processor"] == told


@pytest.mark.parametrize(
    ("flags", "has"),
    [("fma avx2 avx512_bf16", True), ("Features: asimd bf16", True), ("fma avx", False)],
)
def test_instructions_for_bfloat16(flags: str, has: bool, tmp_path: Path) -> None:
    write(tmp_path / "proc/cpuinfo", f"model name : Example\nflags : {flags}\n")
    assert hardware.has_bfloat16(tmp_path) == has


# Accelerators as their vendors' tools tell them ---------------------------------------------------


AMD = {
    "card0": {"VRAM Total Memory (B)": "206141652992", "Card Series": "Instinct MI300X"},
    "card1": {"VRAM Total Memory (B)": "206141652992", "Card Series": "Instinct MI300X"},
    "system": {"Driver version": "6.7.0"},
}
INTEL = {
    "device_list": [{"device_name": "Intel Max 1550", "memory_physical_size_byte": "137438953472"}]
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
        nvmlDeviceGetEnforcedPowerLimit=lambda device: 700_000,
    )


def test_nvidia(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib, "import_module", lambda name: nvml())
    driver = "NVIDIA 550.54 (CUDA 12.4)"
    expected = Accelerators(2, "NVIDIA H100", 80.0, driver, "NVLink, 4 links per GPU", 700.0)
    assert accelerators.find_nvidia() == expected
    monkeypatch.setattr(importlib, "import_module", lambda name: nvml(links=0))
    assert accelerators.find_accelerators() == replace(expected, interconnect="PCIe")
    no_driver = nvml()
    no_driver.nvmlInit = Mock(side_effect=NVMLError)
    for found in (no_driver, nvml(count=0)):
        monkeypatch.setattr(importlib, "import_module", lambda name, found=found: found)
        assert accelerators.find_nvidia() is None


SMI = "NVIDIA A100-SXM4-40GB, 40960, 535.54.03, 400.00\n"
A100 = Accelerators(2, "NVIDIA A100-SXM4-40GB", 40.0, "NVIDIA 535.54.03", max_watts=400.0)


@pytest.mark.parametrize(
    ("tool", "answer", "expected"),
    [
        ("nvidia-smi", 2 * SMI, A100),
        ("nvidia-smi", 2 * SMI.replace("400.00", "[N/A]"), replace(A100, max_watts=None)),
        ("rocm-smi", AMD, Accelerators(2, "AMD Instinct MI300X", 192.0, "amdgpu 6.7.0")),
        ("xpu-smi", INTEL, Accelerators(1, "Intel Max 1550", 128.0)),
        ("rocm-smi", {}, None),
        ("xpu-smi", ["unexpected"], None),
        ("rocm-smi", "no driver'; exit 1; '", None),
    ],
)
def test_a_vendors_tool(
    tool: str, answer: object, expected: Accelerators | None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The driver's tool is always there: no GPU is overlooked for want of a Python package."""
    text = answer if isinstance(answer, str) else json.dumps(answer)
    (tmp_path / tool).write_text(f"#!/bin/sh\necho '{text}'\n")
    (tmp_path / tool).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pynvml", None)  # importing it raises ImportError
    assert accelerators.find_accelerators() == expected


# How many processors other work leaves ------------------------------------------------------------


Times = namedtuple("Times", ["user", "idle", "iowait"])


def test_processors_are_idle_also_where_the_system_hides_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    after = [Times(1, 0, 0), Times(0, 1, 0), Times(1, 0, 1), Times(0, 0, 0)]
    counters = cycle([[Times(0, 0, 0)] * 4, after])
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: next(counters))
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 2, 3})
    assert autotune.measure_idle_processors(0) == pytest.approx(0 + 1 + 0.5 + 1)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0})
    assert autotune.measure_idle_processors(0) == 0
    busy = cycle([[Times(0, 0, 0)], [Times(1, 0, 0)]])
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: next(busy))
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 40, 41})
    assert autotune.measure_idle_processors(0) == 2
    monkeypatch.setattr(psutil, "cpu_times", Mock(side_effect=FileNotFoundError("/proc/stat")))
    assert autotune.measure_idle_processors(0) == 3


@pytest.mark.parametrize(
    ("idle_share", "sharers", "threads"),
    [(1.0, 1, 4), (0.95, 1, 4), (0.75, 1, 3), (0.1, 1, 1), (0.0, 1, 1), (1.0, 2, 2), (1.0, 8, 1)],
)
def test_other_work_takes_its_share_of_the_threads(
    idle_share: float, sharers: int, threads: int
) -> None:
    assert autotune.count_idle_threads(4, idle_share, sharers) == threads


def test_threads_that_other_work_takes_are_told() -> None:
    reason = f"{OTHER_WORK}: 0.1 of 2 processors are idle"
    told = explain_few_threads({"threads": "1", "because": {"threads": reason}})
    assert told.startswith(f"{reason}, so all runs of this result compute on 1 thread; fix: end")
    assert not explain_few_threads({"threads": "2", "because": {"threads": "fastest step: …"}})
    assert not explain_few_threads({})  # of a framework that chooses no threads
