"""What a machine is made of, read from a made-up tree like that of Linux."""

import errno
import os
import platform
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from cepheid.reference.machine import hardware

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


def test_what_the_tree_tells(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def missing() -> None:
    raise FileNotFoundError


def test_what_cannot_be_read_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = hardware.read_hardware(tmp_path, tmp_path)
    assert facts.keys() == {
        "processor", "processor_cores_per_node", "processor_threads_per_node",
        "memory_gib_per_node",
    }  # fmt: skip
    monkeypatch.setattr(platform, "freedesktop_os_release", missing)
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
    ("flags", "has"),
    [("fma avx2 avx512_bf16", True), ("Features: asimd bf16", True), ("fma avx", False)],
)
def test_instructions_for_bfloat16(flags: str, has: bool, tmp_path: Path) -> None:
    write(tmp_path / "proc/cpuinfo", f"model name : Example\nflags : {flags}\n")
    assert hardware.has_bfloat16(tmp_path) == has
