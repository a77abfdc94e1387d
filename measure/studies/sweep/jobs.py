"""Measure the sizes of a sweep, each in a process of its own, and record them one by one."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cepheid.benchmarks.registry import import_task
from cepheid.measure.engine.recorded_points import describe_machine
from cepheid.reference.session.frameworks import import_backend
from cepheid.reference.session.observer import Observer, prepare_data
from cepheid.rules import definition as definitions
from cepheid.rules.definition import Definition, Generation
from cepheid.rules.errors import UserError

if TYPE_CHECKING:
    from cepheid.measure.studies.sweep.points import Point

BATCH_SIZE = "global_batch_size"


@dataclass(frozen=True)
class Job:
    """One size to measure, with all that a process of its own needs to know."""

    benchmark: str
    scale: str
    framework: str
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
    from cepheid.reference.machine import system
    from cepheid.reference.run.config import configure

    config = configure(
        definition,
        division="open",
        overrides=job.overrides,
        framework=job.framework,
        data_root=job.data_root,
        seed=1,
    )
    prepare_data(config.definition, config.data_root, observer)
    with import_backend(job.framework).start_ranks() as ranks:
        description = system.describe("local", ranks)
    configuration = {
        **describe_machine(config, job.overrides, description),
        "measure": job.measure,
        "epochs": job.epochs,
    }
    return configuration, description["accelerator"] is not None


def measure_size(job: Job, observer: Observer) -> "Point":
    """Measure one size in this process. Raises UserError if the memory does not suffice."""
    from cepheid.measure.engine.subject import pick_create
    from cepheid.measure.studies.sweep import points
    from cepheid.reference.machine import energy
    from cepheid.reference.run.config import configure

    definition = definitions.load(job.benchmark, job.scale)
    overrides = list(job.overrides)
    if job.measure == "training":
        overrides.append(f"{BATCH_SIZE}={job.size}")
    else:  # this number at a time and no other, so that its peak of memory is its own
        once = Generation((job.size,), (1,), points.WARM_UP_IMAGES)
        definition = replace(definition, generation=once)
    config = configure(
        definition,
        division="open",
        overrides=overrides,
        framework=job.framework,
        data_root=job.data_root,
        seed=1,
    )
    with import_backend(job.framework).start_ranks() as ranks:
        sensors = energy.find_sensors(has_gpu=ranks.accelerator is not None)
        try:
            task = pick_create(import_task(definition, job.framework))(config, ranks)
            unit = "steps" if job.measure == "training" else "repetitions"
            with observer.count(job.label, unit) as on_count:
                if job.measure == "generation":
                    return points.measure_generation(task, job.size, ranks, sensors, on_count)
                return points.measure_training(task, job.size, ranks, sensors, job.epochs, on_count)
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "memory" not in str(error):
                raise
            raise UserError(f"not enough memory ({error})") from error
