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
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cepheid.benchmarks.registry import import_task
from cepheid.measure.engine.recorded_points import describe_machine
from cepheid.measure.engine.turns import configure_open, find_middle_half, pick_create
from cepheid.reference.machine import energy, hardware, system
from cepheid.reference.machine.use import measure_load
from cepheid.reference.run.config import RunConfig
from cepheid.reference.session.frameworks import import_backend
from cepheid.reference.session.observer import Observer, OnCount, prepare_data
from cepheid.reference.session.request import replace_old_keys
from cepheid.rules import definition as definitions
from cepheid.rules.definition import Block, Definition, Generation
from cepheid.rules.errors import UserError

if TYPE_CHECKING:
    from cepheid.measure.engine.study import OpenDisplay
    from cepheid.reference.run.generate import Generator
    from cepheid.reference.run.train import Task

BATCH_SIZE, DECAY = "global_batch_size", "opt_learning_rate_decay_samples"
EPOCHS, WARM_UP_EPOCHS, EPOCH_SAMPLES = 100, 10, 8_000
WARM_UP_IMAGES = 100
MEASURES: Mapping[str, str] = {
    "training": f"seconds for {EPOCHS} epochs of {EPOCH_SAMPLES:,} samples",
    "generation": "seconds to generate n images",
}
PARTS = 10  # of the timed steps, to show their spread
TIMED_SECONDS = 60.0  # for each batch size, unless a number of epochs is given
CALIBRATION_SECONDS = TIMED_SECONDS * WARM_UP_EPOCHS / EPOCHS

FEWEST_REPETITIONS, MOST_REPETITIONS = 5, 100
GENERATION_SECONDS = 30.0  # of repetitions of each number of images

PARTS_OF_GENERATION = ("sampling", "decoding")


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
    def place(self) -> str:
        """The name of its file below the folder."""
        return f"seed-{self.seed}/{self.size}" if self.measure == "quality" else str(self.size)

    def __str__(self) -> str:
        seed = f", seed {self.seed}" if self.measure == "quality" else ""
        return f"{'images' if self.measure == 'generation' else 'batch size'} {self.size:,}{seed}"

    def list_settings(self, definition: Definition) -> list[str]:
        """Return all settings. Of a training for quality, those of the user come last and win."""
        if self.measure != "quality":
            return [*self.overrides]
        decay = [f"{DECAY}={self.samples}"] if DECAY in definition.hyperparameters else []
        return ["threads=1", f"{BATCH_SIZE}={self.size}", *decay, *self.overrides]

    def configure(self) -> RunConfig:
        """Return the configuration in which this size is measured."""
        definition = definitions.load(self.benchmark, self.scale)
        settings = self.list_settings(definition)
        if self.measure == "training":
            settings.append(f"{BATCH_SIZE}={self.size}")
        if self.measure == "generation":  # no other number, so that its peak of memory is its own
            once = Generation((self.size,), (1,), WARM_UP_IMAGES)
            definition = replace(definition, generation=once)
        return self._configure(definition, settings)

    def _configure(self, definition: Definition, settings: list[str]) -> RunConfig:
        return configure_open(
            definition,
            overrides=replace_old_keys(settings, definition.execution)[0],
            framework=self.framework,
            data_root=self.data_root,
            seed=self.seed,
        )

    def prepare(self, definition: Definition, observer: Observer) -> tuple[dict[str, Any], bool]:
        """Prepare the data; return what all sizes have in common, and whether there is a GPU.

        Raises UserError for settings that the benchmark does not have.
        """
        config = self._configure(definition, self.list_settings(definition))
        prepare_data(config.definition, config.data_root, observer)
        with import_backend(self.framework).start_ranks() as ranks:
            description = system.describe("local", ranks)
        own = "samples" if self.measure == "quality" else "epochs"
        configuration = {
            **describe_machine(config, self.overrides, description),
            **{key: getattr(self, key) for key in ("measure", own)},
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

    @property
    def place(self) -> str:
        """The name of its file below the folder."""
        return str(self.size)

    def __str__(self) -> str:
        epochs = self.counts.get("timed_epochs")
        what = "seconds" if epochs is None else f"seconds for {EPOCHS} epochs"
        how = f"{self.counts.get('repetitions')} repetitions"
        how = how if epochs is None else f"{epochs:.3g} epochs timed"
        spread = f"middle half {format_ends(self.middle_half_seconds)}"
        return f"{format_number(self.seconds)} {what} ({spread}; {how})"


def format_number(value: float) -> str:
    """Format a number with three digits, or without decimals."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def format_ends(ends: Sequence[float]) -> str:
    """Format the ends of a range, or its only value."""
    return " to ".join(dict.fromkeys(map(format_number, ends)))


def measure_size(job: Job, open_display: "OpenDisplay") -> Point:
    """Measure one size in this process, which was started for it.

    Raises UserError if the memory does not suffice.
    """
    config, observer = job.configure(), open_display(None)
    with import_backend(job.framework).start_ranks() as ranks:
        sensors = energy.find_sensors(
            has_gpu=ranks.accelerator is not None, used=[ranks.device_keys]
        )
        try:
            task = pick_create(import_task(config.definition, job.framework))(config, ranks)
            unit = "steps" if job.measure == "training" else "repetitions"
            with observer.count(str(job), unit) as on_count:
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
    task: "Task",
    batch_size: int,
    ranks: Any,
    sensors: energy.Sensors,
    epochs: float | None = None,
    on_progress: OnCount = lambda done, total: None,
) -> Point:
    """Build a task and time ``epochs`` of the 100, or as many steps as take a minute."""
    load = measure_load()
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
        peak_resident_bytes=hardware.read_peak_resident_bytes(),
        peak_device_bytes=_read_peak_device_bytes(ranks),
        energy_joules=None if joules is None else joules / steps.fraction,
        implementation=dict(task.implementation()),
        load_before=load,
    )


class _Stepper:
    """Takes training steps and waits until the device has done them."""

    def __init__(self, task: "Task", batch_size: int) -> None:
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
    task: "Generator",
    images: int,
    ranks: Any,
    sensors: energy.Sensors,
    on_progress: OnCount = lambda done, total: None,
) -> Point:
    """Build a task and time the generation of ``images`` images repeatedly."""
    from cepheid.reference.run.generate import time_repetition  # needs numpy

    load = measure_load()
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
        peak_resident_bytes=hardware.read_peak_resident_bytes(),
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
    return import_backend(framework).read_peak_device_bytes(ranks)
