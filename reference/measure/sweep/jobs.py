"""Measure the sizes of a sweep, each in a process of its own, and record them one by one."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reference.measure import own_process
from reference.session.frameworks import import_task
from reference.session.observer import Observer, prepare_data
from rules import definition as definitions
from rules.definition import Definition, Generation
from rules.errors import UserError
from rules.host import usable_processors

if TYPE_CHECKING:
    from reference.measure.sweep.points import Point
    from reference.measure.sweep.records import SweepFolder

BATCH_SIZE = "global_batch_size"


@dataclass(frozen=True)
class Job:
    """One size to measure, with all that a process of its own needs to know."""

    benchmark: str
    scale: str
    measure: str
    size: int
    epochs: float | None
    overrides: tuple[str, ...]
    data_root: Path

    @property
    def label(self) -> str:
        """The size in words."""
        return f"{'batch size' if self.measure == 'training' else 'images'} {self.size:,}"


def prepare_sweep(
    definition: Definition, job: Job, observer: Observer
) -> tuple[dict[str, Any], bool]:
    """Prepare the data and return what all sizes have in common, and whether there is a GPU.

    Raises UserError for settings that the benchmark does not have.
    """
    from reference.machine import system
    from reference.measure.trainings import HARDWARE
    from reference.run.config import configure
    from reference.session.code_digest import digest_code
    from reference.torch.distributed import start_ranks

    config = configure(
        definition, division="open", overrides=job.overrides, data_root=job.data_root, seed=1
    )
    prepare_data(definition, config.data_root, observer)
    with start_ranks() as ranks:
        description = system.describe("local", ranks)
    threads = config.execution.threads
    if threads == "auto":
        threads = os.environ.get("OMP_NUM_THREADS", str(usable_processors()))
    configuration = {
        "benchmark": definition.name,
        "scale": definition.scale,
        "measure": job.measure,
        "epochs": job.epochs,
        "overrides": sorted(job.overrides),
        "definition_digest": definition.digest,
        "code_digest": digest_code(definitions.ROOT, definition.name),
        "parameters": definition.model["parameters"],
        "system": {key: description[key] for key in (*HARDWARE, "framework")},
        "threads": int(threads),
    }
    return configuration, description["accelerator"] is not None


def measure_missing(
    jobs: Sequence[Job],
    folder: "SweepFolder",
    measure: Callable[[Job], "Point"],
    observer: Observer,
    describe: Callable[["Point"], str],
) -> list[int]:
    """Measure the sizes that are not recorded yet; return those that could not be measured.

    ``measure`` runs in a process of its own; it raises UserError if the size cannot be measured.
    """
    missing = folder.list_missing([job.size for job in jobs])
    if not missing:
        observer.tell(f"{folder.path}: all sizes are recorded, nothing to measure")
    failed = []
    for number, size in enumerate(missing, 1):
        job = next(job for job in jobs if job.size == size)
        label = f"{job.label} ({number} of {len(missing)})"
        observer.tell(f"{label}: building, compiling, warming up")
        try:
            point = own_process.run_alone(measure, job)
        except UserError as error:
            observer.tell(f"{label}: not measured: {error}")
            failed.append(size)
            continue
        folder.keep(point)
        observer.tell(f"{label}: {describe(point)}")
    return failed


def measure_size(job: Job, observer: Observer) -> "Point":
    """Measure one size in this process. Raises UserError if the memory does not suffice."""
    from reference.machine import energy
    from reference.measure.speed import pick_create
    from reference.measure.sweep import points
    from reference.run.config import configure
    from reference.torch.distributed import start_ranks

    definition = definitions.load(job.benchmark, job.scale)
    overrides = list(job.overrides)
    if job.measure == "training":
        overrides.append(f"{BATCH_SIZE}={job.size}")
    else:  # this number at a time and no other, so that its peak of memory is its own
        once = Generation((job.size,), (1,), points.WARM_UP_IMAGES)
        definition = replace(definition, generation=once)
    config = configure(
        definition, division="open", overrides=overrides, data_root=job.data_root, seed=1
    )
    with start_ranks() as ranks:
        sensors = energy.find_sensors(has_gpu=ranks.device.type == "cuda")
        try:
            task = pick_create(import_task(definition, "torch"))(config, ranks)
            unit = "steps" if job.measure == "training" else "repetitions"
            with observer.count(job.label, unit) as on_count:
                if job.measure == "generation":
                    return points.measure_generation(task, job.size, ranks, sensors, on_count)
                return points.measure_training(
                    task, job.size, ranks.device, sensors, job.epochs, on_count
                )
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "memory" not in str(error):
                raise
            raise UserError(f"not enough memory ({error})") from error
