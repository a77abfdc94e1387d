"""What `cepheid measure sweep` measures, keeps and compares: jobs, points, published times.

``<size>.json`` appears when a size is done. ``sweep.json`` and ``sweep.csv`` are made from these.
"""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import yaml

from cepheid.measure.engine.recorded_points import (
    PointFolder,
    describe_machine,
    describe_point,
    name_machine,
    read_points,
)
from cepheid.measure.engine.turns import MIB, configure_open
from cepheid.reference.session.frameworks import import_backend
from cepheid.reference.session.observer import Observer, prepare_data
from cepheid.rules import definition as definitions
from cepheid.rules.definition import Definition, Generation, locate_benchmarks
from cepheid.rules.errors import UserError

if TYPE_CHECKING:
    from cepheid.reference.run.config import RunConfig

BATCH_SIZE, DECAY = "global_batch_size", "opt_learning_rate_decay_samples"
EPOCHS, WARM_UP_EPOCHS, EPOCH_SAMPLES = 100, 10, 8_000
WARM_UP_IMAGES = 100
MEASURES: Mapping[str, str] = {
    "training": f"seconds for {EPOCHS} epochs of {EPOCH_SAMPLES:,} samples",
    "generation": "seconds to generate n images",
}
SIZE_NAMES: Mapping[str, str] = {"training": "batch_size", "generation": "images"}
FILE = "sweep.json"


@dataclass(frozen=True)
class Machine:
    """A machine of a paper, with its seconds by batch size or number of images."""

    largest_power_watts: float
    seconds: Mapping[int, float]


@dataclass(frozen=True)
class Published:
    """Times that a paper reports for a benchmark: ``benchmarks/<name>/published.yaml``.

    They stand beside measurements, with their source and caveats. No rule compares with them.
    ``in_figure`` are the sizes that a figure shows; ``scale`` is the scale of our benchmark that
    has the published network; ``measure`` is one of ``MEASURES``. ``ratio`` names the machine
    whose times the figure divides by those of another one, and that other one.
    """

    source: str
    figure: int
    measure: str
    network: str
    scale: str
    in_figure: tuple[int, ...]
    machines: Mapping[str, Machine]
    ratio: tuple[str, str]
    caveats: tuple[str, ...]


def load_published(benchmark: str) -> Published | None:
    """Return the published times of a benchmark, or None where there are none."""
    path = locate_benchmarks() / benchmark / "published.yaml"
    if not path.is_file():
        return None
    return msgspec.convert(yaml.safe_load(path.read_text(encoding="utf-8")), Published)


@dataclass(frozen=True)
class Job:
    """One size to measure, with all that a process of its own needs to know.

    ``measure`` is one of ``MEASURES``, or "quality" after so many ``samples``.
    """

    benchmark: str
    scale: str
    framework: str
    measure: str
    size: int
    overrides: tuple[str, ...]
    data_root: Path
    epochs: float | None = None
    samples: int = 0
    seed: int = 1

    @property
    def label(self) -> str:
        """The size in words."""
        seed = f", seed {self.seed}" if self.measure == "quality" else ""
        return f"{'images' if self.measure == 'generation' else 'batch size'} {self.size:,}{seed}"

    def list_settings(self, definition: Definition) -> list[str]:
        """Return all settings. Of a training for quality, those of the user come last and win."""
        if self.measure != "quality":
            return [*self.overrides]
        decay = [f"{DECAY}={self.samples}"] if DECAY in definition.hyperparameters else []
        return ["threads=1", f"{BATCH_SIZE}={self.size}", *decay, *self.overrides]

    def configure(self) -> "RunConfig":
        """Return the configuration in which this size is measured."""
        definition = definitions.load(self.benchmark, self.scale)
        settings = self.list_settings(definition)
        if self.measure == "training":
            settings.append(f"{BATCH_SIZE}={self.size}")
        if self.measure == "generation":  # no other number, so that its peak of memory is its own
            once = Generation((self.size,), (1,), WARM_UP_IMAGES)
            definition = replace(definition, generation=once)
        return self._configure(definition, settings)

    def _configure(self, definition: Definition, settings: list[str]) -> "RunConfig":
        return configure_open(
            definition,
            overrides=settings,
            framework=self.framework,
            data_root=self.data_root,
            seed=self.seed,
        )

    def prepare(self, definition: Definition, observer: Observer) -> tuple[dict[str, Any], bool]:
        """Prepare the data; return what all sizes have in common, and whether there is a GPU.

        Raises UserError for settings that the benchmark does not have.
        """
        from cepheid.reference.machine import system

        config = self._configure(definition, self.list_settings(definition))
        prepare_data(config.definition, config.data_root, observer)
        with import_backend(self.framework).start_ranks() as ranks:
            description = system.describe("local", ranks)
        own = {"epochs": self.epochs}
        configuration = {
            **describe_machine(config, self.overrides, description),
            "measure": self.measure,
            **({"samples": self.samples} if self.measure == "quality" else own),
        }
        return configuration, description["accelerator"] is not None


@dataclass(frozen=True)
class Point:
    """The measurement at one size: a batch size, or a number of images.

    ``seconds`` is the measure, scaled from ``fraction`` of it; half of its parts or repetitions lie
    between the two ``middle_half_seconds``. ``counts`` says what was run; ``energy_joules`` is
    scaled like the seconds. ``parts_seconds`` are the medians of sampling and of decoding.
    """

    size: int
    seconds: float
    middle_half_seconds: tuple[float, float]
    images_per_second: float
    fraction: float
    counts: Mapping[str, int | float | None]
    peak_resident_bytes: int
    peak_device_bytes: int | None
    energy_joules: float | None
    implementation: Mapping[str, Any]
    load_before: float
    parts_seconds: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Sweep:
    """All points of one machine by size, and how they were measured.

    Beside them stand published times, and a sweep of another machine.
    """

    configuration: Mapping[str, Any]
    points: tuple[Point, ...]
    no_energy: str = ""  # why no energy was measured
    published: Published | None = None
    other: "Sweep | None" = None

    @property
    def name(self) -> str:
        """The benchmark and its scale in words."""
        return f"{self.configuration['benchmark']}, {self.configuration['scale']} scale"

    @property
    def measure(self) -> str:
        """The measure, one of ``MEASURES``."""
        return str(self.configuration["measure"])

    @property
    def machine(self) -> str:
        """The accelerator, or the processor and the number of threads that were taken."""
        return name_machine(self.configuration, (point.implementation for point in self.points))

    def find_point(self, size: int) -> Point | None:
        """Return the measurement at a size, or None if there is none."""
        return next((point for point in self.points if point.size == size), None)

    def write(self, folder: PointFolder[Point]) -> None:
        """Write ``sweep.json``, and ``sweep.csv`` with the times of another machine, if given."""
        published = self.published
        content = {
            "measure": MEASURES[self.measure],
            "configuration": dict(self.configuration),
            "no_energy": self.no_energy,
            "points": list(map(describe_point, self.points)),
            "published": published and {
                "source": published.source,
                "network": published.network,
                "caveats": published.caveats,
                "seconds": {name: each.seconds for name, each in published.machines.items()},
            },
        }  # fmt: skip
        folder.write_json(FILE, content)
        text = io.StringIO()
        rows = list(map(self._list_cells, self.points))
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        folder.write("sweep.csv", text.getvalue())

    def _list_cells(self, point: Point) -> dict[str, Any]:
        """Return a line of the table for spreadsheets; what was not measured stays empty."""
        device_bytes, joules = point.peak_device_bytes, point.energy_joules
        measured = f"seconds_per_{EPOCHS}_epochs" if self.measure == "training" else "seconds"
        cells: dict[str, Any] = {
            "benchmark": self.configuration["benchmark"],
            "scale": self.configuration["scale"],
            "machine": self.machine,
            SIZE_NAMES[self.measure]: point.size,
            measured: f"{point.seconds:.6g}",
            "first_quartile_seconds": f"{point.middle_half_seconds[0]:.6g}",
            "third_quartile_seconds": f"{point.middle_half_seconds[1]:.6g}",
            "measured_fraction": f"{point.fraction:.6g}",
            "images_per_second": f"{point.images_per_second:.6g}",
            "peak_resident_mib": f"{point.peak_resident_bytes / MIB:.0f}",
            "peak_device_mib": "" if device_bytes is None else f"{device_bytes / MIB:.0f}",
            "energy_joules": "" if joules is None else f"{joules:.6g}",
            **{f"{name}_seconds": f"{value:.6g}" for name, value in point.parts_seconds.items()},
        }
        if self.other:
            there = self.other.find_point(point.size)
            cells["other_machine"] = self.other.machine
            cells["other_seconds"] = f"{there.seconds:.6g}" if there else ""
            cells["other_over_this"] = f"{there.seconds / point.seconds:.4g}" if there else ""
        for name, machine in self.published.machines.items() if self.published else ():
            seconds = machine.seconds.get(point.size)
            cells[f"{name}_reported_seconds"] = "" if seconds is None else seconds
            over = "" if seconds is None else f"{seconds / point.seconds:.4g}"
            cells[f"{name}_over_this"] = over
        return cells


def read_sweep(path: Path, expected: Mapping[str, Any]) -> Sweep:
    """Return the ``sweep.json`` of another machine.

    Raises UserError for any other file, and where it is not of the same measure as ``expected``.
    """
    facts, points = read_points(path, FILE, Point, "sweep")
    configuration = facts["configuration"]
    for key in ("benchmark", "scale", "measure"):
        if configuration.get(key) != expected[key]:
            raise UserError(
                f"--against: its {key} is {configuration.get(key)}, expected {expected[key]} as "
                "here; only the same measure can be compared"
            )
    return Sweep(configuration, points, str(facts.get("no_energy", "")))
