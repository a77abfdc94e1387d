"""Keep the measurements of ``cepheid measure sweep``: one file for each size, and all together.

``configuration.json`` says what is measured and where; sizes of another configuration are refused.
``<size>.json`` appears when a size is done, so a sweep that is broken off loses only the size at
which it was. ``sweep.json`` and ``sweep.csv`` are made anew from these files.
"""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reference.measure.published import Published
from reference.measure.sweep import EPOCHS, MEASURES, Point
from reference.run.results import keep_or_compare
from rules.errors import UserError, cannot_write
from rules.host import atomic_write

MIB = 2**20
SIZE_NAMES: Mapping[str, str] = {"training": "batch_size", "generation": "images"}


@dataclass(frozen=True)
class Sweep:
    """All points of one machine, in the order of their sizes, and how they were measured."""

    configuration: Mapping[str, Any]
    points: tuple[Point, ...]
    no_energy: str = ""  # why no energy was measured

    @property
    def benchmark(self) -> str:
        """What was measured."""
        return str(self.configuration["benchmark"])

    @property
    def scale(self) -> str:
        """And at which scale."""
        return str(self.configuration["scale"])

    @property
    def measure(self) -> str:
        """One of ``sweep.MEASURES``."""
        return str(self.configuration["measure"])

    @property
    def size_name(self) -> str:
        """What the sizes are, as a key."""
        return SIZE_NAMES[self.measure]

    @property
    def machine(self) -> str:
        """What it ran on, in a few words."""
        system = self.configuration["system"]
        threads = self.configuration["threads"]
        if system["accelerator"]:
            return str(system["accelerator"])
        return f"{system['processor']}, {threads} thread{'s' if threads > 1 else ''}"


@dataclass(frozen=True)
class SweepFolder:
    """Where the points of one configuration are kept."""

    path: Path

    def point_path(self, size: int) -> Path:
        """The file of one size."""
        return self.path / f"{size}.json"

    def points(self) -> tuple[Point, ...]:
        """All that are there. Raises UserError for a damaged one."""
        paths = [path for path in self.path.glob("*.json") if path.stem.isdecimal()]
        return tuple(sorted(map(_point, paths), key=lambda point: point.size))

    def missing(self, sizes: Sequence[int]) -> list[int]:
        """Those of ``sizes`` that are still to be measured."""
        return [size for size in sizes if not self.point_path(size).exists()]

    def keep(self, point: Point) -> None:
        """Record a point."""
        _write(self.point_path(point.size), json.dumps(point.as_json(), indent=1) + "\n")

    def write_tables(self, sweep: Sweep, published: Published | None) -> None:
        """``sweep.json`` and ``sweep.csv`` from all points."""
        _write(self.path / "sweep.json", _as_json(sweep, published))
        _write(self.path / "sweep.csv", _as_csv(sweep, published))


def opened(path: Path, configuration: Mapping[str, Any]) -> SweepFolder:
    """The folder for a configuration, made if missing.

    Raises UserError where it holds points of another one, or where it cannot be written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error
    keep_or_compare(
        path / "configuration.json",
        dict(configuration),
        "configuration",
        tuple(configuration),
        "All sizes of a sweep are measured alike",
    )
    return SweepFolder(path)


def read(path: Path) -> Sweep:
    """The ``sweep.json`` of another machine. Raises UserError where it is none."""
    if path.is_dir():
        path = path / "sweep.json"
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        points = tuple(map(Point.from_json, facts["points"]))
        sweep = Sweep(facts["configuration"], points, facts["no_energy"])
        whole = sweep.points and sweep.benchmark and sweep.scale and sweep.machine
        if not whole or sweep.measure not in MEASURES:
            raise ValueError("no points of a measure that is known")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: not what `cepheid measure sweep` writes as sweep.json ({error!r})"
        ) from error
    return sweep


def _point(path: Path) -> Point:
    try:
        return Point.from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: damaged ({error!r}); remove it to measure again") from error


def _as_json(sweep: Sweep, published: Published | None) -> str:
    content = {
        "measure": MEASURES[sweep.measure],
        "configuration": dict(sweep.configuration),
        "no_energy": sweep.no_energy,
        "points": [point.as_json() for point in sweep.points],
        "published": published and {
            "source": published.source,
            "network": published.network,
            "caveats": published.caveats,
            "seconds": {machine.name: machine.seconds for machine in published.machines},
        },
    }  # fmt: skip
    return json.dumps(content, indent=1) + "\n"


def _as_csv(sweep: Sweep, published: Published | None) -> str:
    text = io.StringIO()
    rows = [_row(sweep, point, published) for point in sweep.points]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _row(sweep: Sweep, point: Point, published: Published | None) -> dict[str, Any]:
    """One line of the table for spreadsheets; empty cells where nothing was measured."""
    measured = f"seconds_per_{EPOCHS}_epochs" if sweep.measure == "training" else "seconds"
    row: dict[str, Any] = {
        "benchmark": sweep.benchmark,
        "scale": sweep.scale,
        "machine": sweep.machine,
        sweep.size_name: point.size,
        measured: f"{point.seconds:.6g}",
        "first_quartile_seconds": f"{point.middle_half_seconds[0]:.6g}",
        "third_quartile_seconds": f"{point.middle_half_seconds[1]:.6g}",
        "measured_fraction": f"{point.fraction:.6g}",
        "images_per_second": f"{point.images_per_second:.6g}",
        "peak_resident_mib": f"{point.peak_resident_bytes / MIB:.0f}",
        "peak_device_mib": (
            "" if point.peak_device_bytes is None else f"{point.peak_device_bytes / MIB:.0f}"
        ),
        "energy_joules": "" if point.energy_joules is None else f"{point.energy_joules:.6g}",
        **{f"{name}_seconds": f"{value:.6g}" for name, value in point.parts_seconds.items()},
    }
    for machine in published.machines if published else ():
        seconds = machine.seconds.get(point.size)
        row[f"{machine.name}_reported_seconds"] = "" if seconds is None else seconds
        row[f"{machine.name}_over_this"] = (
            "" if seconds is None else f"{seconds / point.seconds:.4g}"
        )
    return row


def _write(path: Path, text: str) -> None:
    try:
        atomic_write(path, text)
    except OSError as error:
        raise cannot_write(path, error) from error
