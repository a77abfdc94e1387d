"""Keep the measurements of ``cepheid measure sweep``: one file for each size, and all together.

``configuration.json`` says what is measured and where; sizes of another configuration are refused.
``<size>.json`` appears when a size is done, so that an interrupted sweep loses only the current
size. ``sweep.json`` and ``sweep.csv`` are made from these files.
"""

import csv
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cepheid.measure.engine.published import Published
from cepheid.measure.engine.recorded_points import PointFolder, keep_configuration, name_machine
from cepheid.measure.studies.sweep.points import EPOCHS, MEASURES, Point
from cepheid.rules.errors import UserError

MIB = 2**20
SIZE_NAMES: Mapping[str, str] = {"training": "batch_size", "generation": "images"}


@dataclass(frozen=True)
class Sweep:
    """All points of one machine by size, and how they were measured."""

    configuration: Mapping[str, Any]
    points: tuple[Point, ...]
    no_energy: str = ""  # why no energy was measured

    @property
    def benchmark(self) -> str:
        """The name of the benchmark."""
        return str(self.configuration["benchmark"])

    @property
    def scale(self) -> str:
        """The scale of the benchmark."""
        return str(self.configuration["scale"])

    @property
    def measure(self) -> str:
        """The measure, one of ``sweep.MEASURES``."""
        return str(self.configuration["measure"])

    @property
    def size_name(self) -> str:
        """The key for the sizes: ``batch_size`` or ``images``."""
        return SIZE_NAMES[self.measure]

    @property
    def machine(self) -> str:
        """The accelerator, or the processor and the number of threads that were taken."""
        return name_machine(self.configuration, (point.implementation for point in self.points))

    def find_point(self, size: int) -> Point | None:
        """Return the measurement at a size, or None if there is none."""
        return next((point for point in self.points if point.size == size), None)


@dataclass(frozen=True)
class SweepFolder(PointFolder[Point]):
    """The folder with the points of one configuration."""

    parse: Callable[[Mapping[str, Any]], Point] = Point.from_json

    def write_tables(
        self, sweep: Sweep, published: Published | None, other: Sweep | None = None
    ) -> None:
        """Write ``sweep.json``, and ``sweep.csv`` with the times of another machine, if given."""
        self.write("sweep.json", _format_json(sweep, published))
        self.write("sweep.csv", _format_csv(sweep, published, other))


def open_folder(path: Path, configuration: Mapping[str, Any]) -> SweepFolder:
    """Return the folder for a configuration, and make it if it is missing.

    Raises UserError if it has points of another configuration, or cannot be written.
    """
    keep_configuration(path, configuration, "sweep")
    return SweepFolder(path)


def read_sweep(path: Path) -> Sweep:
    """Return the ``sweep.json`` of another machine. Raises UserError for any other file."""
    if path.is_dir():
        path = path / "sweep.json"
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        points = tuple(map(Point.from_json, facts["points"]))
        sweep = Sweep(facts["configuration"], points, facts["no_energy"])
        is_complete = sweep.points and sweep.benchmark and sweep.scale and sweep.machine
        if not is_complete or sweep.measure not in MEASURES:
            raise ValueError("no points of a known measure")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path}: not a sweep.json of `cepheid measure sweep` ({error!r})"
        ) from error
    return sweep


def refuse_other_measure(other: Sweep, configuration: Mapping[str, Any]) -> None:
    """Raise UserError where another machine's sweep is not of the same measure."""
    for key in ("benchmark", "scale", "measure"):
        if other.configuration[key] != configuration[key]:
            raise UserError(
                f"--against: its {key} is {other.configuration[key]}, expected "
                f"{configuration[key]} as here; only the same measure can be compared"
            )


def _format_json(sweep: Sweep, published: Published | None) -> str:
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


def _format_csv(sweep: Sweep, published: Published | None, other: Sweep | None) -> str:
    text = io.StringIO()
    rows = [_make_row(sweep, point, published, other) for point in sweep.points]
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _make_row(
    sweep: Sweep, point: Point, published: Published | None, other: Sweep | None
) -> dict[str, Any]:
    """Return a line of the table for spreadsheets; what was not measured stays empty."""
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
    if other:
        there = other.find_point(point.size)
        row["other_machine"] = other.machine
        row["other_seconds"] = f"{there.seconds:.6g}" if there else ""
        row["other_over_this"] = f"{there.seconds / point.seconds:.4g}" if there else ""
    for machine in published.machines if published else ():
        seconds = machine.seconds.get(point.size)
        row[f"{machine.name}_reported_seconds"] = "" if seconds is None else seconds
        row[f"{machine.name}_over_this"] = (
            "" if seconds is None else f"{seconds / point.seconds:.4g}"
        )
    return row
