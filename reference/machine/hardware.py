"""What this machine is made of, as the system itself tells it: /proc, /sys and vendors' tools.

Nothing is guessed: a fact that cannot be read is left out. Every function takes the root of the
files that it reads, so that a made-up tree can stand for a machine.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path("/")
SECTOR_BYTES = 512  # in which Linux counts the size of every block device
UNNAMED = (
    "",
    "none",
    "default string",
    "to be filled by o.e.m.",
    "system product name",
)


def of_machine(data: Path, root: Path = ROOT) -> dict[str, Any]:
    """The fields of a system description that the files of Linux tell, accelerators left out.

    ``data`` is a folder on the storage that is meant; it need not be there yet.
    """
    facts = {
        "machine": _machine(root),
        **_processor(root),
        "numa_nodes_per_node": len(list(_numbered(root / "sys/devices/system/node", "node"))),
        "storage": _storage(data, root),
        "interconnect": "; ".join([*_infiniband(root), *_ethernet(root)]),
    }
    return {key: value for key, value in facts.items() if value}


def _machine(root: Path) -> str:
    """Maker and model, from the firmware."""
    named = [_line(root / "sys/class/dmi/id" / name) for name in ("sys_vendor", "product_name")]
    return " ".join(name for name in named if name.lower() not in UNNAMED)


def _processor(root: Path) -> dict[str, Any]:
    """Model, sockets, cores, hardware threads: of those that this system may use at all."""
    blocks = _text(root / "proc/cpuinfo").strip().split("\n\n")
    threads = [dict(re.findall(r"^(.+?)\s*:[ \t]*(.*)$", block, re.MULTILINE)) for block in blocks]
    threads = [thread for thread in threads if "processor" in thread]
    cores = {(t.get("physical id"), t.get("core id", t["processor"])) for t in threads}
    sockets = {t["physical id"] for t in threads if "physical id" in t}
    return {
        "processor": next((t["model name"] for t in threads if "model name" in t), ""),
        "processor_sockets_per_node": len(sockets),
        "processor_cores_per_node": len(cores),
        "processor_threads_per_node": len(threads),
    }


def _storage(data: Path, root: Path) -> str:
    """File system and device that ``data`` lies on: ``ext4 on vda (solid state, 252 GiB)``."""
    place = os.path.abspath(data)
    mounted: dict[str, tuple[str, str, str]] = {}
    for line in _text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        number, point = before.split()[2], before.split()[4].replace("\\040", " ")
        kind, source = after.split()[:2]
        mounted[point] = (number, kind, source)  # a later mount hides an earlier one
    points = [p for p in mounted if place == p or place.startswith(p.rstrip("/") + "/")]
    if not points:
        return ""
    number, kind, source = mounted[max(points, key=len)]
    device = root / "sys/dev/block" / number
    if not device.exists():  # over the network, or in memory
        return f"{kind} ({source})" if source not in (kind, "none") else kind
    disk = device if (device / "queue").exists() else device.resolve().parent  # else a partition
    model = _line(disk / "device/model")
    name = " ".join(filter(None, [model, os.path.basename(source)]))
    is_solid = _line(disk / "queue/rotational") == "0"  # virtual disks call themselves rotational
    sectors = _line(disk / "size")
    size = f"{int(sectors) * SECTOR_BYTES / 2**30:,.0f} GiB" if sectors.isdecimal() else ""
    about = ", ".join(filter(None, ["solid state" if is_solid else "", size]))
    return f"{kind} on {name} ({about})" if about else f"{kind} on {name}"


def _infiniband(root: Path) -> Iterator[str]:
    """``2x InfiniBand 400 Gb/sec (4X NDR)``, of the ports that are up."""
    ports = sorted((root / "sys/class/infiniband").glob("*/ports/*"))
    up = [port for port in ports if _line(port / "state").endswith("ACTIVE")]
    kinds = Counter(
        f"{_line(port / 'link_layer') or 'InfiniBand'} (RDMA) {_line(port / 'rate')}" for port in up
    )
    return (f"{count}x {kind}" for kind, count in kinds.items())


def _ethernet(root: Path) -> Iterator[str]:
    """``1x Ethernet 25 Gb/s``, of the cards (not of virtual interfaces) that tell their speed."""
    cards = sorted((root / "sys/class/net").glob("*/device"))
    speeds = [_line(card.parent / "speed") for card in cards]
    known = Counter(int(speed) for speed in speeds if speed.isdecimal() and int(speed))
    return (f"{count}x Ethernet {speed / 1000:g} Gb/s" for speed, count in known.items())


def operating_system(root: Path = ROOT) -> str:
    """``Debian GNU/Linux 12 (bookworm), Linux 6.1.0``."""
    named = re.search(r'^PRETTY_NAME="?([^"\n]+)', _text(root / "etc/os-release"), re.MULTILINE)
    kernel = f"{os.uname().sysname} {os.uname().release}"
    return f"{named.group(1)}, {kernel}" if named else kernel


def _numbered(folder: Path, word: str) -> Iterator[Path]:
    return (path for path in folder.glob(f"{word}*") if path.name[len(word) :].isdecimal())


def _line(path: Path) -> str:
    return _text(path).strip()


def _text(path: Path) -> str:
    """What a file holds; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def differences(nodes: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """How the nodes differ, by field: ``driver: NVIDIA 550 (a, b), NVIDIA 535 (c)``."""
    found = []
    for key in dict.fromkeys(key for facts in nodes.values() for key in facts):
        having: dict[str, list[str]] = {}
        for node, facts in nodes.items():
            having.setdefault(str(facts.get(key, "nothing")), []).append(node)
        if len(having) > 1:
            told = (f"{value} ({_some(names)})" for value, names in having.items())
            found.append(f"{key}: {', '.join(told)}")
    return found


def _some(names: list[str]) -> str:
    few = ", ".join(sorted(names)[:3])
    return few if len(names) <= 3 else f"{few} and {len(names) - 3} more"
