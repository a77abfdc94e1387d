"""The quality that a network reaches at each batch size, after the same number of samples.

Arcelin 2021 (section 4) reports that below a batch size of 4 a network does not learn well. Here a
training runs through a fixed number of samples, whatever targets it reaches, and is evaluated once,
at its end. Each batch size and seed is a process of its own on one thread, so that as many as there
are cores may run beside each other. All batch sizes have the same learning rate, which decays over
that number of samples, unless ``--set`` says otherwise.
"""

import csv
import io
import json
import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cepheid.benchmarks.registry import import_task
from cepheid.measure.engine.recorded_points import (
    PointFolder,
    describe_machine,
    keep_configuration,
)
from cepheid.reference.session.frameworks import find_create, import_backend
from cepheid.reference.session.observer import Observer, prepare_data
from cepheid.rules import definition as definitions
from cepheid.rules.definition import Block, Definition

BATCH_SIZE, DECAY = "global_batch_size", "opt_learning_rate_decay_samples"


@dataclass(frozen=True)
class QualityPoint:
    """The quality of one training: ``size`` is its batch size, ``samples`` what it trained on."""

    size: int
    seed: int
    samples: int
    quality: Mapping[str, float]
    train_loss: float
    seconds: float
    load_before: float
    implementation: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return all fields; what is not finite, of a training that diverged, is None."""
        quality = {name: _write_number(value) for name, value in self.quality.items()}
        return {**asdict(self), "quality": quality, "train_loss": _write_number(self.train_loss)}

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> "QualityPoint":
        """Return the point that ``as_json`` wrote; raises TypeError or KeyError for other facts."""
        point = cls(**facts)
        quality = {name: _read_number(value) for name, value in dict(point.quality).items()}
        return replace(point, quality=quality, train_loss=_read_number(point.train_loss))


def _write_number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _read_number(value: float | None) -> float:
    return math.nan if value is None else float(value)


@dataclass(frozen=True)
class QualityJob:
    """One training, with all that a process of its own needs to know."""

    benchmark: str
    scale: str
    framework: str
    size: int
    seed: int
    samples: int
    overrides: tuple[str, ...]
    data_root: Path

    @property
    def label(self) -> str:
        """The training in words."""
        return f"batch size {self.size:,}, seed {self.seed}"

    def list_overrides(self, definition: Definition) -> list[str]:
        """Return all settings: those of the user come last and win."""
        own = ["threads=1", f"{BATCH_SIZE}={self.size}"]
        if DECAY in definition.hyperparameters:
            own.append(f"{DECAY}={self.samples}")
        return [*own, *self.overrides]


@dataclass(frozen=True)
class QualitySweep:
    """All points by batch size and seed, and how they were measured."""

    configuration: Mapping[str, Any]
    points: tuple[QualityPoint, ...]

    @property
    def sizes(self) -> list[int]:
        """The batch sizes, rising."""
        return sorted({point.size for point in self.points})

    @property
    def metrics(self) -> list[str]:
        """The metrics of all points, in the order of the evaluation."""
        return list(self.points[0].quality)

    def list_values(self, metric: str, size: int) -> list[float]:
        """Return a metric at a batch size, by seed; NaN of a training that diverged."""
        return [point.quality[metric] for point in self.points if point.size == size]


def prepare_quality(
    definition: Definition, job: QualityJob, observer: Observer
) -> Mapping[str, Any]:
    """Prepare the data and return what all trainings have in common.

    Raises UserError for settings that the benchmark does not have.
    """
    from cepheid.reference.machine import system
    from cepheid.reference.run.config import configure

    config = configure(
        definition,
        division="open",
        overrides=job.list_overrides(definition),
        framework=job.framework,
        data_root=job.data_root,
        seed=job.seed,
    )
    prepare_data(config.definition, config.data_root, observer)
    with import_backend(job.framework).start_ranks() as ranks:
        description = system.describe("local", ranks)
    return {
        **describe_machine(config, job.overrides, description),
        "measure": "quality",
        "samples": job.samples,
    }


def train_once(job: QualityJob, observer: Observer) -> QualityPoint:
    """Train and evaluate in this process."""
    os.environ["OMP_NUM_THREADS"] = "1"  # before the framework is loaded
    from cepheid.reference.run.config import configure

    definition = definitions.load(job.benchmark, job.scale)
    config = configure(
        definition,
        division="open",
        overrides=job.list_overrides(definition),
        framework=job.framework,
        data_root=job.data_root,
        seed=job.seed,
    )
    load = os.getloadavg()[0]
    with import_backend(job.framework).start_ranks() as ranks:
        task = find_create(import_task(definition, job.framework))(config, ranks)
        task.build()
        task.warm_up()
        task.open_data()
        end = -(-job.samples // job.size) * job.size
        start = time.monotonic()
        with observer.count(job.label, "samples") as on_count:
            loss = task.train(Block(1, 0, end), lambda samples: on_count(samples, end))
        quality = task.evaluate()
        return QualityPoint(
            size=job.size,
            seed=job.seed,
            samples=end,
            quality=dict(quality),
            train_loss=float(loss),
            seconds=time.monotonic() - start,
            load_before=load,
            implementation=dict(task.implementation()),
        )


def open_folders(
    path: Path, configuration: Mapping[str, Any], seeds: Sequence[int]
) -> Mapping[int, PointFolder[QualityPoint]]:
    """Return the folder of each seed, and make those that are missing.

    Raises UserError if there are points of another configuration, or if it cannot be written.
    """
    keep_configuration(path, configuration, "sweep")
    folders = {}
    for seed in seeds:
        place = path / f"seed-{seed}"
        place.mkdir(exist_ok=True)
        folders[seed] = PointFolder(place, QualityPoint.from_json)
    return folders


def load_all(path: Path) -> tuple[QualityPoint, ...]:
    """Return the points of all seeds, also of those of earlier commands."""
    found: list[QualityPoint] = []
    for place in sorted(path.glob("seed-*")):
        found += PointFolder(place, QualityPoint.from_json).load_points()
    return tuple(sorted(found, key=lambda point: (point.size, point.seed)))


def write_tables(path: Path, sweep: QualitySweep) -> None:
    """Write ``quality.json`` and ``quality.csv``."""
    folder = PointFolder(path, QualityPoint.from_json)
    content = {
        "configuration": dict(sweep.configuration),
        "points": [point.as_json() for point in sweep.points],
    }
    folder.write("quality.json", json.dumps(content, indent=1) + "\n")
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["batch_size", "seed", "samples", *sweep.metrics, "train_loss", "seconds"])
    for point in sweep.points:
        values = [f"{value:.6g}" for value in point.quality.values()]
        last = [f"{point.train_loss:.6g}", f"{point.seconds:.4g}"]
        writer.writerow([point.size, point.seed, point.samples, *values, *last])
    folder.write("quality.csv", text.getvalue())


def describe_spread(values: Sequence[float]) -> str:
    """Return the median, and the least and the largest value if they differ.

    Values that are not finite, of trainings that diverged, are counted instead.
    """
    finite = [value for value in values if math.isfinite(value)]
    diverged = len(values) - len(finite)
    if not finite:
        return "diverged"
    text = f"{statistics.median(finite):.4g}"
    if min(finite) != max(finite):
        text += f" ({min(finite):.4g} to {max(finite):.4g})"
    return f"{text}; {diverged} of {len(values)} diverged" if diverged else text
