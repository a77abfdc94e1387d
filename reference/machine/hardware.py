"""What this machine is made of, read from Linux and from psutil.

Nothing is guessed: a fact that cannot be read is left out. The functions that read files of Linux
take the root of the file system, so that tests can describe other machines.

psutil counts cores and memory. It knows neither the model and the sockets of the processors nor the
device below a file system nor RDMA networks, so these are read from ``/proc`` and ``/sys`` here.
"""

import os
import platform
import re
import resource
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil

ROOT = Path("/")
SECTOR_BYTES = 512  # Linux counts the size of every block device in sectors of this size
BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
UNNAMED = ("", "none", "default string", "to be filled by o.e.m.", "system product name")


def read_hardware(data: Path, root: Path = ROOT) -> dict[str, Any]:
    """Return the fields of a system description that can be read here, without accelerators.

    ``data`` is a folder on the storage to describe; the folder need not exist yet.
    """
    facts = {
        "machine": _read_machine(root),
        **_read_processor(root),
        "numa_nodes_per_node": sum(
            path.name.removeprefix("node").isdecimal()
            for path in (root / "sys/devices/system/node").glob("node*")
        ),
        "memory_gib_per_node": round(psutil.virtual_memory().total / 2**30, 1),
        "storage": _read_storage(data, root),
        "interconnect": "; ".join([*_read_infiniband(root), *_read_ethernet(root)]),
    }
    return {key: value for key, value in facts.items() if value}


def has_bfloat16(root: Path = ROOT) -> bool:
    """Return True if the processor multiplies bfloat16 itself (AVX512-BF16, AMX, or Arm's BF16)."""
    return not BFLOAT16_FLAGS.isdisjoint(_read_text(root / "proc/cpuinfo").split())


def _read_machine(root: Path) -> str:
    """Return maker and model as the firmware names them."""
    names = [
        _read_text(root / "sys/class/dmi/id" / name) for name in ("sys_vendor", "product_name")
    ]
    return " ".join(name for name in names if name.lower() not in UNNAMED)


def _read_processor(root: Path) -> dict[str, Any]:
    """Return model, sockets, cores and hardware threads of the processors that are online."""
    lines = re.findall(r"^(.+?)\s*:[ \t]*(.*)$", _read_text(root / "proc/cpuinfo"), re.MULTILINE)
    first = dict(reversed(lines))
    model = first.get("model name", "")
    # Virtual machines may say "AMD EPYC" alone, whichever generation: then numbers tell it.
    if {"cpu family", "model"} <= first.keys() and not re.search(r"\d", model):
        model = f"{model} (family {first['cpu family']}, model {first['model']})".strip()
    return {
        "processor": model or platform.processor() or platform.machine(),
        "processor_sockets_per_node": len({value for key, value in lines if key == "physical id"}),
        "processor_cores_per_node": psutil.cpu_count(logical=False) or os.cpu_count() or 1,
        "processor_threads_per_node": psutil.cpu_count(),
    }


def _read_storage(data: Path, root: Path) -> str:
    """Return file system and device below ``data``: ``ext4 on vda (solid state, 252 GiB)``."""
    place = os.path.abspath(data)
    mounts: dict[str, tuple[str, str, str]] = {}
    for line in _read_text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        number, point = before.split()[2], before.split()[4].replace("\\040", " ")
        kind, source = after.split()[:2]
        mounts[point] = (number, kind, source)  # a later mount hides an earlier one
    points = [p for p in mounts if place == p or place.startswith(p.rstrip("/") + "/")]
    if not points:
        return ""
    number, kind, source = mounts[max(points, key=len)]
    device = root / "sys/dev/block" / number
    # A container may not look at its devices; else the file system is in memory or elsewhere.
    if not os.path.exists(device):
        return f"{kind} ({source})" if source not in (kind, "none") else kind
    is_disk = os.path.exists(device / "queue")
    disk = device if is_disk else device.resolve().parent  # a partition lies below its disk
    model = _read_text(disk / "device/model")
    name = " ".join(filter(None, [model, os.path.basename(source)]))
    is_solid = _read_text(disk / "queue/rotational") == "0"  # virtual disks say that they rotate
    sectors = _read_text(disk / "size")
    size = f"{int(sectors) * SECTOR_BYTES / 2**30:,.0f} GiB" if sectors.isdecimal() else ""
    about = ", ".join(filter(None, ["solid state" if is_solid else "", size]))
    return f"{kind} on {name} ({about})" if about else f"{kind} on {name}"


def _read_infiniband(root: Path) -> Iterator[str]:
    """Yield ``2x InfiniBand 400 Gb/sec (4X NDR)`` for each kind of port that is up."""
    ports = sorted((root / "sys/class/infiniband").glob("*/ports/*"))
    up = [port for port in ports if _read_text(port / "state").endswith("ACTIVE")]
    kinds = Counter(
        f"{_read_text(port / 'link_layer') or 'InfiniBand'} (RDMA) {_read_text(port / 'rate')}"
        for port in up
    )
    return (f"{count}x {kind}" for kind, count in kinds.items())


def _read_ethernet(root: Path) -> Iterator[str]:
    """Yield ``1x Ethernet 25 Gb/s`` for each speed of a card; virtual interfaces are left out."""
    cards = sorted((root / "sys/class/net").glob("*/device"))
    speeds = [_read_text(card.parent / "speed") for card in cards]
    known = Counter(int(speed) for speed in speeds if speed.isdecimal() and int(speed))
    return (f"{count}x Ethernet {speed / 1000:g} Gb/s" for speed, count in known.items())


def read_operating_system() -> str:
    """Return distribution and kernel, ``Debian GNU/Linux 12 (bookworm), Linux 6.1.0``."""
    kernel = f"{platform.system()} {platform.release()}"
    try:
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {kernel}"
    except OSError:
        return kernel


def _read_text(path: Path) -> str:
    """Return the stripped text of a file, or nothing if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def find_differences(nodes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return how the nodes differ, a line per field: ``driver: NVIDIA 550 (a, b), NVIDIA 535 (c)``.

    ``nodes`` maps the name of each node to its facts.
    """
    differences = []
    for key in dict.fromkeys(key for facts in nodes.values() for key in facts):
        names_by_value: dict[str, list[str]] = {}
        for node, facts in nodes.items():
            names_by_value.setdefault(str(facts.get(key, "nothing")), []).append(node)
        if len(names_by_value) > 1:
            values = (f"{value} ({_join_some(names)})" for value, names in names_by_value.items())
            differences.append(f"{key}: {', '.join(values)}")
    return differences


def _join_some(names: list[str]) -> str:
    few = ", ".join(sorted(names)[:3])
    return few if len(names) <= 3 else f"{few} and {len(names) - 3} more"


def read_peak_resident_bytes() -> int:
    """Return the largest resident memory of this process, pages of mapped files included.

    On Linux the kernel's own figure (VmHWM) is read, which psutil does not have. ``ru_maxrss``
    would be wrong there: a process inherits the value of the process that started it.
    """
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        status = ""
    peak = re.search(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE)
    kibibytes = int(peak.group(1)) if peak else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kibibytes * 1024
