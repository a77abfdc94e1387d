"""What a benchmark costs before anybody has run it here: minutes, disk, devices; and the table."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cepheid.compliance.read.log import runlog
from cepheid.rules import definition
from cepheid.rules.definition import Definition
from cepheid.rules.documents import parse_yaml
from cepheid.rules.host import ROOT
from cepheid.rules.metrics import QualityTarget

MEMORY = ROOT / "docs" / "memory.json"  # what runs had in memory
OURS = ROOT / "submissions" / "cepheid"  # a checkout has it, an installation does not

DATASETS = parse_yaml(Path(__file__).with_name("datasets.yaml").read_text(encoding="utf-8"))
DISK_GB: Mapping[tuple[str, str], tuple[float, float]] = {
    (name.partition(" ")[0], name.partition(" ")[2]): (files, prepared)
    for name, (files, prepared) in DATASETS["disk_gb"].items()
}


@dataclass(frozen=True)
class Reference:
    """Our own result of a benchmark: the median time of its runs, and the machine."""

    system: str
    seconds: float
    runs: int


def find_reference(
    chosen: Definition, *, on_accelerators: bool = False, other_than: Path = Path()
) -> Reference | None:
    """Return our fastest result of a benchmark at its scale by this definition, if there is one.

    It is of processors alone, or ``on_accelerators`` where there is one of those, and never the
    one in the folder ``other_than``. An installation has none.
    """
    found = []
    results = set(OURS.glob(f"results/*/{chosen.name}-{chosen.scale}-closed"))
    for folder in sorted(results - {other_than.absolute()}):
        logs = [*map(runlog.read, folder.glob("result_*.txt"))]
        is_same = {log.text("definition_digest") for log in logs} == {chosen.digest}
        seconds = [log.seconds for log in logs if is_same and log.converged and log.seconds]
        kind = has_accelerators(OURS, folder.parent.name)
        if seconds and (on_accelerators or not kind):
            reference = Reference(folder.parent.name, statistics.median(seconds), len(seconds))
            found.append((kind != on_accelerators, reference.seconds, reference))
    return min(found)[2] if found else None


def has_accelerators(submitter: Path, system: str) -> bool:
    """Return whether a system of a submitter's folder is described with accelerators."""
    try:
        text = (submitter / "systems" / f"{system}.json").read_text(encoding="utf-8")
        return bool(json.loads(text).get("accelerators_per_node"))
    except (OSError, ValueError, AttributeError):
        return False


def find_disk(chosen: Definition) -> tuple[float, float] | None:
    """Return gigabytes of distributed files and of prepared ones; None where nobody knows.

    Of a subset (``--limit``) they are its share.
    """
    disk = DISK_GB.get((str(chosen.data["generator"]), str(chosen.data.get("source", ""))))
    if disk is None or not chosen.data.get("is_subset"):
        return disk
    share = chosen.train_samples / definition.load(chosen.name, chosen.scale).train_samples
    return disk[0] * share, disk[1] * share


def find_existing(path: Path) -> Path:
    """Return the folder nearest to ``path`` that is there."""
    path = path.absolute()
    while not path.is_dir():
        path = path.parent
    return path


def describe_disk(chosen: Definition) -> str:
    """Return both in GB: ``0.1``, or ``45 + 45`` where files must be put there."""
    disk = find_disk(chosen)
    if disk is None:
        return "?"
    files, prepared = (max(part, 0.001) if part else 0 for part in disk)
    return f"{files:.3g} + {prepared:.3g}" if files else f"{prepared:.3g}"


def describe_bytes(count: float) -> str:
    """Return bytes in MB, or in GB from 1 GB on; both are decimal, as disks are sold."""
    if count < 1e9:
        return f"{count / 1e6:,.0f} MB" if count >= 1e6 else "less than 1 MB"
    return f"{count / 1e9:,.{0 if count >= 1e11 else 1}f} GB"


def find_memory(chosen: Definition) -> float | None:
    """Return the most gigabytes that a run on processors had in memory, where it was measured.

    `cepheid measure speed NAME --only memory` measures it; an installation has no records.
    """
    if not MEMORY.is_file():
        return None
    recorded = json.loads(MEMORY.read_text(encoding="utf-8"))["peak_resident_bytes"]
    peak = recorded.get(f"{chosen.name}-{chosen.scale}")
    return None if peak is None else peak / 1e9


def describe_minutes(reference: Reference | None) -> str:
    """Return the minutes of a run, or a dash for none."""
    return f"{reference.seconds / 60:.1f}" if reference else "-"


def describe_devices(chosen: Definition) -> str:
    """Return on what a run ends within a day."""
    return "GPUs" if chosen.provisional else "CPU"


def list_costs() -> Iterator[Mapping[str, str]]:
    """Yield a row for each benchmark and scale."""
    for name in definition.names():
        for scale in definition.scales(name):
            chosen = definition.load(name, scale)
            reference, memory = find_reference(chosen), find_memory(chosen)
            yield {
                "benchmark": name,
                "scale": scale,
                "min": describe_minutes(reference),
                "disk": describe_disk(chosen),
                "RAM": "-" if memory is None else f"{memory:.1f}",
                "on": describe_devices(chosen),
                "quality": shorten_targets(chosen.quality, chosen.provisional),
            }


def shorten_targets(quality: Sequence[QualityTarget], provisional: str | None) -> str:
    """Return the first metric with a target, and how many more there are."""
    more = f" +{len(quality) - 1}" if len(quality) > 1 else ""
    return f"{quality[0].metric}{more}{' *' if provisional else ''}"
