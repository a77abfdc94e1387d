"""The one timed generation loop. It knows the Generator protocol and the log, and no framework.

What a repetition lasts (rule T24): the clock is read, noise is drawn and carried to latents, the
device is waited for, the clock is read; latents become images in the memory of the host, the device
is waited for, the clock is read. Nothing else happens in between.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from reference.run.config import RunConfig
from reference.run.log import RunLogWriter
from rules.definition import Definition

Latents = Any
Images = Any
"""What a framework makes of them; the loop only hands them on."""


@dataclass(frozen=True)
class Times:
    """Seconds of all repetitions of generating ``images`` images at a time, in their order."""

    images: int
    sampling_seconds: tuple[float, ...]
    decoding_seconds: tuple[float, ...]

    @property
    def seconds(self) -> tuple[float, ...]:
        """Sampling and decoding together."""
        parts = zip(self.sampling_seconds, self.decoding_seconds, strict=True)
        return tuple(sampling + decoding for sampling, decoding in parts)


class Generator(Protocol):
    """The code of a benchmark that generates, for one framework."""

    data_digest: str
    """Digest of the prepared data, from the manifest alone."""
    weights_digest: str
    """SHA-256 of the file with the weights."""

    def drop_caches(self) -> None:
        """Drop the data files from the file caches of the operating system (rule T6)."""

    def build(self) -> int:
        """Read the weights; returns the number of parameters."""

    def warm_up(self, images: int) -> None:
        """Compile, and generate at least so many images in every number at a time that will be
        timed, from noise that no repetition draws."""

    def implementation(self) -> Mapping[str, Any]:
        """Framework, device, precision, ranks: what a reader asks for beside a time."""

    def open_data(self) -> None:
        """Touch the dataset for the first time."""

    def sample(self, images: int, repetition: int) -> Latents:
        """Draw the noise of this repetition, which is another one for every run, number of images
        and repetition, and carry it to latents."""

    def decode(self, latents: Latents) -> Images:
        """Images in the memory of the host. They are there until the next ones are decoded."""

    def quality(self, images: Images) -> dict[str, float]:
        """All metrics of images that were timed."""

    def synchronize(self) -> None:
        """Wait for the device."""

    def measured(self, times: Sequence[Times]) -> None:
        """Take note, for a report, of what was measured."""


@dataclass(frozen=True)
class Progress:
    """What to tell somebody who waits: ``done`` repetitions of ``images`` images at a time, and
    ``times`` when all of them are."""

    stage: str
    images: int = 0
    done: int = 0
    times: Times | None = None
    quality: Mapping[str, float] | None = None
    samples: int = 0


@dataclass(frozen=True)
class Outcome:
    """How a run ended: whether every target holds, images generated, their quality, why not."""

    reached: bool
    samples: int
    quality: Mapping[str, float]
    times: tuple[Times, ...]
    reason: str = ""


def run(
    definition: Definition,
    task: Generator,
    config: RunConfig,
    log: RunLogWriter,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Outcome:
    """Generate as the definition says, judge what was generated, and log it (T2, T24)."""
    asked = definition.generation
    assert asked is not None, "the definition of a benchmark that generates"
    with log.before_the_clock():
        log.identity(config)
        task.drop_caches()
        log.event("cache_clear", True)
        with log.initialisation():
            on_progress(Progress("initialising"))
            log.settings(config)
            log.event("data_digest", task.data_digest)
            log.event("weights_digest", task.weights_digest)
            log.event("model_parameters", task.build())
            task.warm_up(asked.warm_up_images)
            log.event("implementation", dict(task.implementation()))
        task.synchronize()
    with log.timed_run() as timed:
        times, images = [], None
        for count, repetitions in zip(asked.counts, asked.repetitions, strict=True):
            images = None  # two lots at a time may be more than there is memory
            log.generation_start(count)
            taken, images = _repeated(task, count, repetitions, on_progress)
            log.generation_stop(taken.images, taken.sampling_seconds, taken.decoding_seconds)
            times.append(taken)
            on_progress(Progress("generated", count, repetitions, taken))
        task.measured(times)
        outcome = _judged(definition, task, images, tuple(times), log, on_progress)
        task.synchronize()
        timed.end(reached=outcome.reached, reason=outcome.reason)
    return outcome


def _repeated(
    task: Generator, count: int, repetitions: int, on_progress: Callable[[Progress], None]
) -> tuple[Times, Images]:
    """Times of all repetitions, and the images of the last one."""
    sampling, decoding = [], []
    images = None
    for repetition in range(repetitions):
        on_progress(Progress("generating", count, repetition))
        (sampling_seconds, decoding_seconds), images = repetition_seconds(task, count, repetition)
        sampling.append(sampling_seconds)
        decoding.append(decoding_seconds)
    return Times(count, tuple(sampling), tuple(decoding)), images


def repetition_seconds(
    task: Generator, images: int, repetition: int
) -> tuple[tuple[float, float], Images]:
    """Seconds of sampling and of decoding in one repetition, and the images."""
    task.synchronize()
    started = time.perf_counter()
    latents = task.sample(images, repetition)
    task.synchronize()
    sampled = time.perf_counter()
    made = task.decode(latents)
    task.synchronize()
    decoded = time.perf_counter()
    return (sampled - started, decoded - sampled), made


def _judged(
    definition: Definition,
    task: Generator,
    images: Images,
    times: tuple[Times, ...],
    log: RunLogWriter,
    on_progress: Callable[[Progress], None],
) -> Outcome:
    """The quality of the images that were timed last, on the dataset, which is opened only now."""
    assert definition.generation is not None
    samples = definition.generation.images
    on_progress(Progress("evaluating"))
    log.judging_start()
    task.open_data()
    quality = task.quality(images)
    broken = ", ".join(key for key, value in quality.items() if not math.isfinite(value))
    if broken:
        return Outcome(False, samples, {}, times, f"the quality is not finite ({broken})")
    log.judgement(quality, definition.quality[0].metric)
    log.judging_stop()
    on_progress(Progress("evaluated", quality=quality, samples=samples))
    missed = [target for target in definition.quality if not target.holds(quality[target.metric])]
    reason = " and ".join(f"{target.metric} is {quality[target.metric]:.4g}" for target in missed)
    return Outcome(not missed, samples, quality, times, f"targets missed: {reason}" * bool(missed))
