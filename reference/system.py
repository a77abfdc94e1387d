"""The system description of this machine, valid against ``rules/schemas/system.schema.json``."""

import json
import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rules.definition import first_schema_problem
from rules.errors import UserError

if TYPE_CHECKING:
    from reference.alone import AnyRanks

SOFTWARE = ("torch", "keras", "tensorflow-cpu", "numpy", "GalSim", "mlperf-logging")


def read(path: Path) -> dict[str, Any]:
    """A system description from a file. Raises UserError where it is missing or not valid."""
    try:
        description = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such system description") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not a JSON file: {error}") from error
    problem = first_schema_problem(description, "system")
    if problem:
        raise UserError(
            f"{path}: {problem} (rule S2; the schema is rules/schemas/system.schema.json)"
        )
    return dict(description)


def describe(submitter: str, ranks: "AnyRanks") -> dict[str, Any]:
    """What can be read off this machine: the nodes and the accelerators that the ranks drive.

    All nodes are taken to be like this one. Raises UserError for a submitter that cannot be a
    folder's name.
    """
    accelerator = ranks.accelerator
    accelerators = ranks.ranks_per_node if accelerator else 0
    nodes = -(-ranks.world_size // ranks.ranks_per_node)
    processor, cores = _processor(), os.cpu_count() or 1
    part = accelerator or processor
    count = accelerators or cores
    name = f"{nodes}x{count}-{part}" if nodes > 1 else f"{count}x-{part}"
    framework = ranks.framework.partition(" ")[0]
    description = {
        "submitter": submitter,
        # The same machine with another framework is another system: results stand side by side.
        "system": _slug(name if framework == "torch" else f"{name}-{framework}"),
        "status": "available",
        "nodes": nodes,
        "processor": processor,
        "processor_cores_per_node": cores,
        "memory_gib_per_node": round(
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1
        ),
        "accelerators_per_node": accelerators,
        "accelerator": accelerator,
        "operating_system": f"{platform.system()} {platform.release()}",
        "framework": ranks.framework,
        "software": {"python": platform.python_version()} | _versions(),
        "notes": "read by `cepheid run`; correct and complete it before submitting",
    }
    problem = first_schema_problem(description, "system")
    if problem:
        raise UserError(f"--submitter {submitter}: {problem}")
    return description


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    named = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return named.group(1).strip() if named else platform.machine()


def _slug(text: str) -> str:
    """A name as the rules allow it (S1): letters, digits, '.', '_' and '-'."""
    text = re.sub(r"\((R|TM)\)|CPU|Processor|@.*", "", text)
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:64]


def _versions() -> dict[str, str]:
    found = {}
    for package in SOFTWARE:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
