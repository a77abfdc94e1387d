"""The one timed generation loop. It knows the Generator protocol and the log, and no framework.

A repetition (rule T24) has two timed parts. The first part draws noise, carries it to latents and
waits for the device. The second part decodes the latents to images in the memory of the host and
waits for the device. Each repetition begins where the one before it ended, so a machine that turns
to other work takes no time from between them, and only reports of progress come before the noise.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from cepheid.reference.data.verification import DataRead
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.generation import ImageMaker, Images, Times
from cepheid.reference.run.log import RunLogWriter
from cepheid.reference.run.progress import OnProgress, Outcome, Progress, Stage, ignore_progress
from cepheid.rules.definition import Definition


class Generator(ImageMaker, Protocol):
    """A task that generates, for one framework: its images, and the dataset beside them."""

    data_digest: str
    """Digest of the prepared data, from the manifest alone."""

    def drop_caches(self) -> bool | None:
        """Drop the data files from the file caches (rule T6); False where that is impossible."""

    def open_data(self) -> None:
        """Open the dataset. Nothing touches it before."""

    def digest_data(self) -> DataRead:
        """Digest what the run read, after the clock has stopped; on every rank (rule T27)."""

    def keep_times(self, times: Sequence[Times]) -> None:
        """Keep the measured times for a report."""


@dataclass(frozen=True)
class GenerationProgress(Progress):
    """A report of ``done`` repetitions of ``images`` images; ``times`` when all are done."""

    images: int = 0
    done: int = 0
    times: Times | None = None


@dataclass(frozen=True)
class GenerationOutcome(Outcome):
    """The end of a run that generates; ``samples`` counts the images."""

    times: tuple[Times, ...] = ()


def run(
    definition: Definition,
    task: Generator,
    config: RunConfig,
    log: RunLogWriter,
    on_progress: OnProgress = ignore_progress,
) -> GenerationOutcome:
    """Generate as the definition says, evaluate the generated images, and log it (T2, T24)."""
    schedule = definition.generation
    assert schedule is not None, "the definition of a benchmark that generates"
    with log.before_the_clock():
        log.write_identity(config)
        log.event("cache_clear", task.drop_caches() is not False)
        with log.initialisation():
            on_progress(GenerationProgress(Stage.INITIALISING))
            log.write_settings(config)
            log.event("data_digest", task.data_digest)
            log.event("weights_digest", task.weights_digest)
            log.event("model_parameters", task.build())
            task.warm_up(schedule.warm_up_images)
            log.event("implementation", config.complete_implementation(task.implementation()))
        task.synchronize()
    with log.time_run() as timed:
        times, images = [], None
        for count, repetitions in zip(schedule.counts, schedule.repetitions, strict=True):
            images = None  # memory may not hold two batches of images at a time
            log.start_generation(count)
            measured, images = _repeat(task, count, repetitions, on_progress)
            log.stop_generation(count, measured.sampling_seconds, measured.decoding_seconds)
            times.append(measured)
            on_progress(
                GenerationProgress(Stage.GENERATED, images=count, done=repetitions, times=measured)
            )
        task.keep_times(times)
        outcome = _evaluate(definition, task, images, log, on_progress)
        outcome = replace(outcome, times=tuple(times))
        task.synchronize()
        timed.end(reached=outcome.reached, reason=outcome.reason)
    if outcome.is_finite:
        log.event("image_projections", task.project(images))
    return outcome


def _repeat(
    task: Generator, count: int, repetitions: int, on_progress: OnProgress
) -> tuple[Times, Images]:
    """Return the times of all repetitions, and the images of the last one."""
    sampling, decoding = [], []
    images = None
    ended = time.perf_counter()
    for repetition in range(repetitions):
        on_progress(GenerationProgress(Stage.GENERATING, images=count, done=repetition))
        seconds, images = time_repetition(task, count, repetition, started=ended)
        ended += sum(seconds)
        sampling.append(seconds[0])
        decoding.append(seconds[1])
    return Times(count, tuple(sampling), tuple(decoding)), images


def time_repetition(
    task: Generator, images: int, repetition: int, started: float | None = None
) -> tuple[tuple[float, float], Images]:
    """Return the seconds of sampling and of decoding ``images`` images, and the images.

    Sampling begins at ``started`` by ``time.perf_counter``, or now.
    """
    task.synchronize()
    started = time.perf_counter() if started is None else started
    latents = task.sample(images, repetition)
    task.synchronize()
    sampled = time.perf_counter()
    decoded_images = task.decode(latents)
    task.synchronize()
    decoded = time.perf_counter()
    return (sampled - started, decoded - sampled), decoded_images


def _evaluate(
    definition: Definition,
    task: Generator,
    images: Images,
    log: RunLogWriter,
    on_progress: OnProgress,
) -> GenerationOutcome:
    """Evaluate the images that were timed last, on the dataset, which is opened only now."""
    assert definition.generation is not None
    samples = definition.generation.images
    on_progress(GenerationProgress(Stage.EVALUATING))
    log.start_evaluation()
    task.open_data()
    quality = task.evaluate(images)
    broken = ", ".join(key for key, value in quality.items() if not math.isfinite(value))
    if broken:
        reason = f"the quality is not finite ({broken})"
        return GenerationOutcome(False, samples, {}, reason, is_finite=False)
    log.write_quality(quality, definition)
    log.stop_evaluation()
    on_progress(GenerationProgress(Stage.EVALUATED, samples, quality))
    missed = [target for target in definition.quality if not target.holds(quality[target.metric])]
    reason = " and ".join(f"{target.metric} is {quality[target.metric]:.4g}" for target in missed)
    return GenerationOutcome(
        not missed, samples, quality, f"targets missed: {reason}" if missed else ""
    )
