"""The measures of Arcelin 2021 (sections 3.2 and 3.3), on this machine, for one size.

training
    Seconds for 100 epochs of 8,000 samples at a batch size, after 10 epochs of warm-up; an epoch
    has 8,000 // batch steps. Only steps are timed, no evaluation. A part of the 100 epochs is run
    and scaled, and the warm-up is shortened in proportion.
generation
    Seconds to generate n images, sampling and decoding separately, after a warm-up of 100 images
    and one of n. The paper did it once; here it is repeated.

Measure each size in a process of its own, so that its peak of memory is its own. Energy is measured
where there are sensors.
"""

import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cepheid.benchmarks.registry import import_task
from cepheid.measure.engine.turns import find_middle_half, pick_create
from cepheid.measure.studies.sweep.records import (
    EPOCH_SAMPLES,
    EPOCHS,
    WARM_UP_EPOCHS,
    WARM_UP_IMAGES,
    Job,
    Point,
)
from cepheid.reference.machine import energy, memory
from cepheid.reference.run.generate import Generator, time_repetition
from cepheid.reference.run.train import Task
from cepheid.reference.session.frameworks import import_backend
from cepheid.reference.session.observer import Observer, OnCount
from cepheid.rules.definition import Block
from cepheid.rules.errors import UserError

PARTS = 10  # of the timed steps, to show their spread
TIMED_SECONDS = 60.0  # for each batch size, unless a number of epochs is given
CALIBRATION_SECONDS = TIMED_SECONDS * WARM_UP_EPOCHS / EPOCHS

FEWEST_REPETITIONS, MOST_REPETITIONS = 5, 100
GENERATION_SECONDS = 30.0  # of repetitions of each number of images

PARTS_OF_GENERATION = ("sampling", "decoding")


def measure_size(job: Job, observer: Observer) -> Point:
    """Measure one size in this process. Raises UserError if the memory does not suffice."""
    config = job.configure()
    with import_backend(job.framework).start_ranks() as ranks:
        sensors = energy.find_sensors(has_gpu=ranks.accelerator is not None)
        try:
            task = pick_create(import_task(config.definition, job.framework))(config, ranks)
            unit = "steps" if job.measure == "training" else "repetitions"
            with observer.count(job.label, unit) as on_count:
                if job.measure == "generation":
                    return measure_generation(task, job.size, ranks, sensors, on_count)
                return measure_training(task, job.size, ranks, sensors, job.epochs, on_count)
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "memory" not in str(error):
                raise
            raise UserError(f"not enough memory ({error})") from error


@dataclass(frozen=True)
class TrainingSteps:
    """The numbers of steps: of the warm-up, timed, and of the whole measure."""

    warm_up: int
    timed: int
    whole: int

    @property
    def fraction(self) -> float:
        """The share of the measure that is timed."""
        return self.timed / self.whole


def measure_training(
    task: Task,
    batch_size: int,
    ranks: Any,
    sensors: energy.Sensors,
    epochs: float | None = None,
    on_progress: OnCount = lambda done, total: None,
) -> Point:
    """Build a task and time ``epochs`` of the 100, or as many steps as take a minute."""
    load = os.getloadavg()[0]
    task.build()
    task.warm_up()
    task.open_data()
    train = _Stepper(task, batch_size)
    steps = _warm_up(train, batch_size, epochs)
    parts, joules = _time_parts(train, steps.timed, sensors, on_progress)
    scaled = [seconds * PARTS / steps.fraction for seconds in parts]
    total_seconds = sum(parts) / steps.fraction
    return Point(
        size=batch_size,
        seconds=total_seconds,
        middle_half_seconds=find_middle_half(scaled),
        images_per_second=steps.whole * batch_size / total_seconds,
        fraction=steps.fraction,
        counts={
            "warm_up_steps": steps.warm_up,
            "timed_steps": steps.timed,
            "timed_epochs": EPOCHS * steps.fraction,
            "train_loss": train.loss if math.isfinite(train.loss) else None,
        },
        peak_resident_bytes=memory.read_peak_resident_bytes(),
        peak_device_bytes=_read_peak_device_bytes(ranks),
        energy_joules=None if joules is None else joules / steps.fraction,
        implementation=dict(task.implementation()),
        load_before=load,
    )


class _Stepper:
    """Takes training steps and waits until the device has done them."""

    def __init__(self, task: Task, batch_size: int) -> None:
        self.task, self.batch_size = task, batch_size
        self.samples = 0
        self.loss = 0.0  # the mean over the last steps

    def __call__(self, steps: int, on_step: Callable[[], None] = lambda: None) -> float:
        """Return the seconds that ``steps`` steps take."""
        first, self.samples = self.samples, self.samples + steps * self.batch_size
        start = time.perf_counter()
        self.loss = self.task.train(Block(0, first, self.samples), lambda samples: on_step())
        self.task.synchronize()
        return time.perf_counter() - start


def _warm_up(train: _Stepper, batch_size: int, epochs: float | None) -> TrainingSteps:
    """Warm up for a tenth of the timed steps; return how many steps to time."""
    epoch = EPOCH_SAMPLES // batch_size
    whole = EPOCHS * epoch
    if epochs is not None:
        timed = _round_to_parts(epochs * epoch, whole)
        warm_up = max(1, round(timed * WARM_UP_EPOCHS / EPOCHS))
        train(warm_up)
        return TrainingSteps(warm_up, timed, whole)
    warm_up, seconds, steps = 0, 0.0, 1
    spent_seconds = 0.0
    while spent_seconds < CALIBRATION_SECONDS:
        if warm_up:
            steps = min(warm_up, _count_steps(CALIBRATION_SECONDS, seconds, steps))
        seconds = train(steps)
        spent_seconds += seconds
        warm_up += steps
    timed = _round_to_parts(_count_steps(TIMED_SECONDS, seconds, steps), whole)
    return TrainingSteps(warm_up, timed, whole)


def _count_steps(wanted_seconds: float, seconds: float, steps: int) -> int:
    """Return how many steps take ``wanted_seconds`` if ``steps`` take ``seconds``."""
    return max(1, round(wanted_seconds * steps / max(seconds, 1e-9)))


def _round_to_parts(steps: float, whole: int) -> int:
    """Return the nearest number of steps that has equal parts, at most ``whole``."""
    return min(max(1, round(steps / PARTS)) * PARTS, whole)


def _time_parts(
    train: _Stepper, steps: int, sensors: energy.Sensors, on_progress: OnCount
) -> tuple[list[float], float | None]:
    """Return the seconds of each part, and the energy of all in joules if there are sensors."""
    done = 0

    def on_step() -> None:
        nonlocal done
        done += 1
        on_progress(done, steps)

    with energy.Meter(sensors) as meter:
        start = time.monotonic()
        parts = [train(steps // PARTS, on_step) for _ in range(PARTS)]
        ended = time.monotonic()
    trace = meter.trace
    return parts, trace.energy_joules(start, ended) if trace else None


def measure_generation(
    task: Generator,
    images: int,
    ranks: Any,
    sensors: energy.Sensors,
    on_progress: OnCount = lambda done, total: None,
) -> Point:
    """Build a task and time the generation of ``images`` images repeatedly."""
    load = os.getloadavg()[0]
    task.build()
    task.warm_up(WARM_UP_IMAGES)
    first_seconds = sum(time_repetition(task, images, 0)[0])
    repetitions = round(GENERATION_SECONDS / max(first_seconds, 1e-9))
    repetitions = min(max(repetitions, FEWEST_REPETITIONS), MOST_REPETITIONS)
    parts = []
    with energy.Meter(sensors) as meter:
        start = time.monotonic()
        for done in range(1, repetitions + 1):
            parts.append(time_repetition(task, images, done)[0])
            on_progress(done, repetitions)
        ended = time.monotonic()
    joules = meter.trace.energy_joules(start, ended) if meter.trace else None
    seconds = [sum(both) for both in parts]
    median_seconds = statistics.median(seconds)
    return Point(
        size=images,
        seconds=median_seconds,
        middle_half_seconds=find_middle_half(seconds),
        images_per_second=images / median_seconds,
        fraction=1.0,
        counts={"warm_up_images": WARM_UP_IMAGES + images, "repetitions": repetitions},
        peak_resident_bytes=memory.read_peak_resident_bytes(),
        peak_device_bytes=_read_peak_device_bytes(ranks),
        energy_joules=None if joules is None else joules / repetitions,
        implementation=dict(task.implementation()),
        load_before=load,
        parts_seconds={
            name: statistics.median(values)
            for name, values in zip(PARTS_OF_GENERATION, zip(*parts, strict=True), strict=True)
        },
    )


def _read_peak_device_bytes(ranks: Any) -> int | None:
    """Return the most bytes that were allocated on this rank's device at once; None for a CPU."""
    if ranks.accelerator is None:
        return None
    framework, _, _ = ranks.framework.partition(" ")
    peak: int = import_backend(framework).read_peak_device_bytes()
    return peak
