"""The measures of Arcelin 2021 (sections 3.2 and 3.3), on this machine, one size after the other.

training
    Seconds for 100 epochs of 8,000 samples at a batch size, after 10 epochs of warm-up; 8,000 //
    batch steps make an epoch. Steps alone: no evaluation. Of the 100 epochs a part is run and
    scaled, and the warm-up is shortened alike.
generation
    Seconds to generate n images, sampling latents and decoding them told apart, after a warm-up of
    100 images and one of n, repeated; the paper did it once.

Each size is to be measured in a process of its own, so that its peak of memory is its own. Energy
is told where there are sensors.
"""

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from reference.machine import energy, memory
from reference.run.generate import Generator, time_repetition
from reference.run.train import Task
from rules.definition import Block

EPOCHS, WARM_UP_EPOCHS, EPOCH_SAMPLES = 100, 10, 8_000
PARTS = 10  # in which the timed steps are told apart, for their spread
TIMED_SECONDS = 60.0  # of each batch size, where it is not said how many epochs
CALIBRATION_SECONDS = TIMED_SECONDS * WARM_UP_EPOCHS / EPOCHS

WARM_UP_IMAGES = 100
FEWEST_REPETITIONS, MOST_REPETITIONS = 5, 100
GENERATION_SECONDS = 30.0  # of repetitions of each number of images

MEASURES: Mapping[str, str] = {
    "training": f"seconds for {EPOCHS} epochs of {EPOCH_SAMPLES:,} samples",
    "generation": "seconds to generate n images",
}

OnProgress = Callable[[int, int], None]


PARTS_OF_GENERATION = ("sampling", "decoding")


@dataclass(frozen=True)
class Point:
    """What was measured at one size: a batch size, or a number of images.

    ``seconds`` is the measure, scaled from ``fraction`` of it; a quarter of its parts or
    repetitions lies below the first of ``middle_half_seconds`` and a quarter above the second.
    ``counts`` says what was run, ``energy_joules`` is scaled alike. ``parts_seconds`` are the
    medians of sampling and decoding, each by itself.
    """

    size: int
    seconds: float
    middle_half_seconds: tuple[float, float]
    images_per_second: float
    fraction: float
    counts: Mapping[str, float | None]
    peak_resident_bytes: int
    peak_device_bytes: int | None
    energy_joules: float | None
    implementation: Mapping[str, Any]
    load_before: float
    parts_seconds: Mapping[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> "Point":
        """What ``as_json`` wrote. Raises TypeError or KeyError for anything else."""
        first, third = facts["middle_half_seconds"]
        return cls(**{**facts, "middle_half_seconds": (float(first), float(third))})


@dataclass(frozen=True)
class TrainingSteps:
    """How many steps are run of those that the measure asks for."""

    warm_up: int
    timed: int
    whole: int

    @property
    def fraction(self) -> float:
        """Of the measure that is timed."""
        return self.timed / self.whole


def training(
    task: Task,
    batch_size: int,
    device: Any,
    sensors: energy.Sensors,
    epochs: float | None = None,
    on_progress: OnProgress = lambda done, total: None,
) -> Point:
    """Time ``epochs`` of the 100, or as many steps as take a minute; builds the task first."""
    load = os.getloadavg()[0]
    task.build()
    task.warm_up()
    task.open_data()
    train = _Stepper(task, batch_size)
    steps = _warmed_up(train, batch_size, epochs)
    parts, joules = _timed(train, steps.timed, sensors, on_progress)
    whole = [seconds * PARTS / steps.fraction for seconds in parts]
    total_seconds = sum(parts) / steps.fraction
    return Point(
        size=batch_size,
        seconds=total_seconds,
        middle_half_seconds=_middle_half(whole),
        images_per_second=steps.whole * batch_size / total_seconds,
        fraction=steps.fraction,
        counts={
            "warm_up_steps": steps.warm_up,
            "timed_steps": steps.timed,
            "timed_epochs": EPOCHS * steps.fraction,
            "train_loss": train.loss if math.isfinite(train.loss) else None,
        },
        peak_resident_bytes=memory.read_peak_resident_bytes(),
        peak_device_bytes=memory.read_peak_device_bytes(device),
        energy_joules=None if joules is None else joules / steps.fraction,
        implementation=dict(task.implementation()),
        load_before=load,
    )


class _Stepper:
    """Takes steps, and waits until they are done."""

    def __init__(self, task: Task, batch_size: int) -> None:
        self.task, self.batch_size = task, batch_size
        self.samples = 0
        self.loss = 0.0  # the mean of the steps that were taken last

    def __call__(self, steps: int, on_step: Callable[[], None] = lambda: None) -> float:
        """Seconds for so many of them."""
        first, self.samples = self.samples, self.samples + steps * self.batch_size
        started = time.perf_counter()
        self.loss = self.task.train(Block(0, first, self.samples), lambda samples: on_step())
        self.task.synchronize()
        return time.perf_counter() - started


def _warmed_up(train: _Stepper, batch_size: int, epochs: float | None) -> TrainingSteps:
    """Warm up as long as the steps that are to be timed ask for, and say how many these are."""
    epoch = EPOCH_SAMPLES // batch_size
    whole = EPOCHS * epoch
    if epochs is not None:
        timed = _in_parts(epochs * epoch, whole)
        warm_up = max(1, round(timed * WARM_UP_EPOCHS / EPOCHS))
        train(warm_up)
        return TrainingSteps(warm_up, timed, whole)
    warm_up, seconds, taken = 0, 0.0, 1
    spent_seconds = 0.0
    while spent_seconds < CALIBRATION_SECONDS:
        taken = 1 if not warm_up else min(warm_up, _steps_in(CALIBRATION_SECONDS, seconds, taken))
        seconds = train(taken)
        spent_seconds += seconds
        warm_up += taken
    return TrainingSteps(warm_up, _in_parts(_steps_in(TIMED_SECONDS, seconds, taken), whole), whole)


def _steps_in(asked_seconds: float, seconds: float, steps: int) -> int:
    """How many steps take that long, if ``steps`` take ``seconds``."""
    return max(1, round(asked_seconds * steps / max(seconds, 1e-9)))


def _in_parts(steps: float, whole: int) -> int:
    """The nearest number of steps that can be told apart in equal parts; no more than ``whole``."""
    return min(max(1, round(steps / PARTS)) * PARTS, whole)


def _timed(
    train: _Stepper, steps: int, sensors: energy.Sensors, on_progress: OnProgress
) -> tuple[list[float], float | None]:
    """Seconds of each part, and the energy of all together in joules."""
    done = 0

    def on_step() -> None:
        nonlocal done
        done += 1
        on_progress(done, steps)

    with energy.Meter(sensors) as meter:
        started = time.monotonic()
        parts = [train(steps // PARTS, on_step) for _ in range(PARTS)]
        ended = time.monotonic()
    trace = meter.trace
    return parts, trace.energy_joules(started, ended) if trace else None


def generation(
    task: Generator,
    images: int,
    ranks: Any,
    sensors: energy.Sensors,
    on_progress: OnProgress = lambda done, total: None,
) -> Point:
    """Time the generation of ``images`` images again and again; builds the task first."""
    load = os.getloadavg()[0]
    task.build()
    task.warm_up(WARM_UP_IMAGES)
    first_seconds = sum(time_repetition(task, images, 0)[0])
    repetitions = round(GENERATION_SECONDS / max(first_seconds, 1e-9))
    repetitions = min(max(repetitions, FEWEST_REPETITIONS), MOST_REPETITIONS)
    parts = []
    with energy.Meter(sensors) as meter:
        started = time.monotonic()
        for done in range(1, repetitions + 1):
            parts.append(time_repetition(task, images, done)[0])
            on_progress(done, repetitions)
        ended = time.monotonic()
    joules = meter.trace.energy_joules(started, ended) if meter.trace else None
    seconds = [sum(both) for both in parts]
    median_seconds = statistics.median(seconds)
    return Point(
        size=images,
        seconds=median_seconds,
        middle_half_seconds=_middle_half(seconds),
        images_per_second=images / median_seconds,
        fraction=1.0,
        counts={"warm_up_images": WARM_UP_IMAGES + images, "repetitions": repetitions},
        peak_resident_bytes=memory.read_peak_resident_bytes(),
        peak_device_bytes=memory.read_peak_device_bytes(ranks.device),
        energy_joules=None if joules is None else joules / repetitions,
        implementation=dict(task.implementation()),
        load_before=load,
        parts_seconds={
            name: statistics.median(values)
            for name, values in zip(PARTS_OF_GENERATION, zip(*parts, strict=True), strict=True)
        },
    )


def _middle_half(seconds: Sequence[float]) -> tuple[float, float]:
    first, _, third = statistics.quantiles(seconds, n=4, method="inclusive")
    return first, third
