"""The system description of this machine, valid against ``rules/schemas/system.schema.json``."""

import json
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from cepheid.reference.machine import hardware
from cepheid.reference.machine.accelerators import Accelerators, find_accelerators
from cepheid.rules.documents import FILL_IN, SCHEMAS, find_schema_problem, parse_json
from cepheid.rules.errors import UserError, raise_if_refused
from cepheid.rules.systems import find_device, refuse_name

if TYPE_CHECKING:
    from cepheid.reference.machine.ranks import Ranks

SOFTWARE = ("torch", "triton", "keras", "tensorflow-cpu", "tensorflow", "jax", "numpy", "GalSim",
            "mlperf-logging")  # fmt: skip
TEXT_MAX = 200  # characters
TO_FILL = {  # facts that no file of the machine holds
    "storage": "the storage that holds the data, for example 2x NVMe 3.84 TB, XFS",
    "interconnect": "how the nodes are connected, for example 8x InfiniBand NDR 400 Gb/s each",
    "notes": "what else it takes to buy or build the same, for example cooling, limits of power, "
    "settings of the firmware, a cloud's type of machine and its region",
}


@dataclass(frozen=True)
class Described:
    """A system description, and a line for each field in which its nodes differ."""

    content: dict[str, Any]
    differences: tuple[str, ...] = ()


def read_description(path: Path) -> dict[str, Any]:
    """Read a system description from a file.

    Raises UserError if the file is missing or not valid.
    """
    try:
        description = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(
            f"{path}: no such system description; `cepheid describe-system --output {path}` "
            "writes one"
        ) from error
    except (OSError, ValueError) as error:
        raise_if_refused(path, error)
        raise UserError(f"{path}: not a JSON file: {error}") from error
    problem = find_schema_problem(description, "system")
    if problem:
        raise UserError(
            f"{path}: {problem} (rule S2; the schema is rules/schemas/system.schema.json)"
        )
    for field in ("submitter", "system"):
        refuse_name(description[field], f"a {field}")
    return dict(description)


def describe(submitter: str, ranks: "Ranks", data: Path = Path("data")) -> dict[str, Any]:
    """Describe this node and the accelerators that the ranks use; all nodes count as equal to it.

    A field that only a person can fill in begins with ``FILL_IN``. Raises UserError if
    ``submitter`` cannot be the name of a folder.
    """
    return _complete(
        submitter, ranks, _describe_node(ranks, data, _find_used(ranks, ranks.ranks_per_node))
    )


def describe_all(
    submitter: str, ranks: "Ranks", data: Path, measured: Mapping[str, Any] = MappingProxyType({})
) -> Described:
    """Describe all nodes, with the accelerators that they use; every rank must call this.

    A single process, which no launcher started, describes all accelerators that it could use.
    ``measured`` are the peaks that the first rank measured.
    """
    used = _find_used(ranks, ranks.usable if ranks.world_size == 1 else ranks.ranks_per_node)
    node = _describe_node(ranks, data, used)
    by_name: dict[str, dict[str, Any]] = dict(ranks.all_gather_object((platform.node(), node)))
    facts = {name: _flat(facts) for name, facts in sorted(by_name.items())}
    description = _complete(submitter, ranks, {**ranks.broadcast(node), **measured})
    return Described(description, tuple(hardware.find_differences(facts)))


def find_unused(description: Mapping[str, Any]) -> str:
    """Return the accelerators of this machine that a description leaves out, "" for none."""
    found = find_accelerators()
    rest = found.count - description["accelerators_per_node"] if found else 0
    return str(replace(found, count=rest)) if found and rest > 0 else ""


def _find_used(ranks: "Ranks", count: int) -> Accelerators | None:
    if ranks.accelerator is None:
        return None
    known = find_accelerators() or Accelerators(0, "")
    return replace(known, count=count, name=ranks.accelerator)


def _describe_node(ranks: "Ranks", data: Path, devices: Accelerators | None) -> dict[str, Any]:
    """Return the fields of a description that can be read on this node."""
    facts = {
        **hardware.read_hardware(data),
        "accelerators_per_node": devices.count if devices else 0,
        "accelerator": devices.name if devices else None,
        "operating_system": hardware.read_operating_system(),
        "framework": ranks.framework,
        "software": {"python": platform.python_version()}
        | _read_versions()
        | dict(ranks.libraries),
    }
    if devices:
        read = {
            "accelerator_memory_gib": devices.memory_gib,
            "accelerator_interconnect": devices.interconnect,
            "driver": devices.driver,
            "accelerator_max_watts": devices.max_watts,
        }
        facts |= {key: value for key, value in read.items() if value}
    return {k: v[:TEXT_MAX] if isinstance(v, str) else v for k, v in facts.items()}


def _complete(submitter: str, ranks: "Ranks", node: Mapping[str, Any]) -> dict[str, Any]:
    """Return a valid description: the facts of a node, names, and the fields to fill in."""
    nodes = -(-ranks.world_size // ranks.ranks_per_node)
    part = node["accelerator"] or node["processor"]
    count = node["accelerators_per_node"] or node["processor_cores_per_node"]
    name = f"{nodes}x{count}-{part}" if nodes > 1 else f"{count}x-{part}"
    framework, _, others = node["framework"].partition(" ")
    backend = others.partition(" on ")[2].partition(" ")[0]  # keras 3.15.1 on jax 0.10.2
    if backend and backend != "tensorflow":
        framework = f"{framework}-{backend}"
    to_fill = dict(TO_FILL)
    if nodes == 1:
        del to_fill["interconnect"]
    description = {
        "submitter": submitter,
        # The same machine with another framework is another system: results stand side by side.
        "system": _make_slug(name if framework == "torch" else f"{name}-{framework}"),
        "status": "available",
        "nodes": nodes,
        **{key: FILL_IN + what for key, what in to_fill.items()},
        **node,
        **_add_datasheet(node),
    }
    problem = find_schema_problem(description, "system")
    if problem:
        raise UserError(f"--submitter {submitter}: {problem}")
    order = json.loads((SCHEMAS / "system.schema.json").read_text(encoding="utf-8"))["properties"]
    return {key: description[key] for key in order if key in description}


def _add_datasheet(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the peaks of a node: those measured, and those that the datasheet states."""
    peaks = {key: dict(peak) for key, peak in node.get("peak_tflops", {}).items()}
    memory = dict(node.get("memory_gb_per_second", {}))
    if known := find_device(node["accelerator"]):
        for precision, tflops in known.peak_tflops.items():
            peaks.setdefault(precision, {})["datasheet"] = tflops
        if known.memory_gb_per_second:
            memory["datasheet"] = known.memory_gb_per_second
    found = {"peak_tflops": peaks, "memory_gb_per_second": memory}
    return {key: value for key, value in found.items() if value}


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts with the version of each package as a field of its own."""
    return {key: value for key, value in facts.items() if key != "software"} | {**facts["software"]}


def _make_slug(text: str) -> str:
    """Turn a text into a name that rule S1 allows: letters, digits, '.', '_' and '-'."""
    text = re.sub(r"\((R|TM)\)|CPU|Processor|@.*", "", text)
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:64]


def _read_versions() -> dict[str, str]:
    found = {}
    for package in SOFTWARE:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
