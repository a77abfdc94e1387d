"""S2: what a description says of a machine is possible, and agrees with itself."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from cepheid.compliance.checks.log.machine import read_versions
from cepheid.compliance.checks.registry import Described
from cepheid.compliance.finding import Finding, breach, format_value
from cepheid.compliance.read.contents import SystemFile
from cepheid.rules.devices import find_device
from cepheid.rules.events import is_integer

THREADS_PER_CORE_MAX = 16
RANKS_PER_CORE_MAX = 4
COUNTS_MAX = {  # as in the schema
    "nodes": 1_000_000,
    "accelerators_per_node": 1024,
    "processor_cores_per_node": 16_384,
}


def check_machine(system: SystemFile) -> Iterator[Finding]:
    """Check that counts of a valid description fit together, and that versions agree (S2)."""
    for field, expected, because in _find_contradictions(system.content or {}):
        yield breach(
            system,
            None,
            "S2.contradiction",
            field=field,
            because=because,
            expected=expected,
            value=format_value((system.content or {}).get(field)),
        )


def _find_contradictions(content: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield a field, what it must be, and why."""
    cores = content["processor_cores_per_node"]
    sockets = content.get("processor_sockets_per_node", 1)
    threads = content.get("processor_threads_per_node", cores)
    if sockets > cores:
        yield "processor_sockets_per_node", f"at most {cores:,}", "each has a core"
    if not cores <= threads <= THREADS_PER_CORE_MAX * cores:
        expected = f"from {cores:,} to {THREADS_PER_CORE_MAX * cores:,}"
        yield "processor_threads_per_node", expected, f"there are {cores:,} cores"
    if not content["accelerators_per_node"]:
        for field in ("accelerator_memory_gib", "accelerator_interconnect"):
            if field in content:
                yield field, "no such field", "there is no accelerator"
    yield from _find_other_peaks(content)
    of_software = {
        name.casefold(): version for name, version in content.get("software", {}).items()
    }
    for name, version in read_versions(content["framework"]).items():
        other = re.match(r"[0-9][\w.]*", of_software.get(name, version))
        if other and other[0].rstrip(".") != version:
            yield "framework", f"{name} {other[0]}", f"software says {name} {other[0]}"


def _find_other_peaks(content: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield where the peaks contradict what the maker of a known accelerator states."""
    known = find_device(content["accelerator"])
    if known is None:
        return
    because = f"rules/devices.yaml has {known.device}"
    peaks = content.get("peak_tflops", {})
    stated = [
        ("peak_tflops", f" for {precision}", peaks.get(precision, {}), value)
        for precision, value in known.peak_tflops.items()
    ]
    if known.memory_gb_per_second:
        field = "memory_gb_per_second"
        stated.append((field, "", content.get(field, {}), known.memory_gb_per_second))
    for field, what, peak, value in stated:
        if peak.get("datasheet", value) != value:
            yield field, f"a datasheet value of {value:g}{what}", because
        if peak.get("measured", 0) > value:
            yield field, f"a measured value of at most {value:g}{what}", because


def describe_machine(system: SystemFile | None) -> Described | None:
    """Return what a description says of the machine that logs name too, or None if it is unsound.

    There is one rank on each node or more, and one for each accelerator or fewer. Without
    accelerators a core has at most four.
    """
    content = (system.content if system else None) or {}
    framework = content.get("framework")
    known = [
        count
        for key, most in COUNTS_MAX.items()
        if is_integer(count := content.get(key)) and 0 <= count <= most
    ]
    if len(known) < len(COUNTS_MAX) or not isinstance(framework, str):
        return None
    if not any(map(str.isalnum, framework)):
        return None
    nodes, accelerators, cores = known
    if accelerators and not isinstance(content.get("accelerator"), str):
        return None
    most = nodes * (accelerators or RANKS_PER_CORE_MAX * cores)
    # A plain dict: what is judged elsewhere is sent to another process.
    return Described(framework, nodes * accelerators, (nodes, most), dict(content))
