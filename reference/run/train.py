"""The one timed train/evaluate loop. It knows the Task protocol and the log, and no framework."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from reference.run.config import RunConfig
from reference.run.log import RunLogWriter
from rules.definition import Block, Definition

WHEN_NOT_FINITE = (
    "a lower learning rate or precision=fp32 may help; `cepheid data --verify` finds damaged data"
)


class Task(Protocol):
    """The code of a benchmark for one framework. On several ranks each one has its own.

    One that has something to say beside its quality also keeps ``reference.run.report.Reports``.
    """

    data_digest: str
    """Digest of the prepared data, from the manifest alone."""

    def drop_caches(self) -> None:
        """Drop the data files from the file caches of the operating system (rule T6)."""

    def build(self) -> int:
        """Make model and optimizer; returns the number of trainable parameters."""

    def warm_up(self) -> None:
        """Compile and run once on synthetic data of the real shape; the state stays as built."""

    def implementation(self) -> Mapping[str, Any]:
        """Framework, device, precision, ranks: what a reader asks for beside a time."""

    def open_data(self) -> None:
        """Touch the dataset for the first time."""

    def train(self, block: Block, on_samples: Callable[[int], None]) -> float:
        """Train to ``block.samples``; returns the mean loss. Calls ``on_samples`` with the number
        of samples trained since the start of the run after every step."""

    def evaluate(self) -> dict[str, float]:
        """All metrics over the whole evaluation set, the same on every rank."""

    def synchronize(self) -> None:
        """Wait for this rank's device and for all other ranks."""

    def state(self) -> Mapping[str, Any]:
        """All that going on needs, as tensors, numbers and strings."""


@runtime_checkable
class MeasuresAfterwards(Protocol):
    """A task that measures something once the clock has stopped, which enters no score."""

    def measure_afterwards(self) -> Mapping[str, float]:
        """Events of the phase after ``run_stop`` and their values; called on every rank. The state
        stays as it is."""


@dataclass(frozen=True)
class Progress:
    """What to tell somebody who waits."""

    stage: str
    samples: int = 0
    quality: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Outcome:
    """How a run ended: whether every target holds, samples trained, the last quality, why not."""

    reached: bool
    samples: int
    quality: Mapping[str, float]
    reason: str = ""


def run(
    definition: Definition,
    task: Task,
    config: RunConfig,
    log: RunLogWriter,
    on_progress: Callable[[Progress], None] = lambda progress: None,
) -> Outcome:
    """Train until every quality target holds or the budget is spent, and log it (T2 to T11)."""
    with log.before_the_clock():
        log.identity(config)
        task.drop_caches()
        log.event("cache_clear", True)
        with log.initialisation():
            on_progress(Progress("initialising"))
            log.settings(config)
            log.event("data_digest", task.data_digest)
            log.event("model_parameters", task.build())
            task.warm_up()
            log.event("implementation", dict(task.implementation()))
        task.synchronize()
    with log.timed_run() as timed:
        task.open_data()
        outcome = _until_reached(definition, task, config, log, on_progress)
        task.synchronize()
        timed.end(reached=outcome.reached, reason=outcome.reason)
    if outcome.reached and isinstance(task, MeasuresAfterwards):
        on_progress(Progress("measuring, not timed", outcome.samples))
        for key, value in task.measure_afterwards().items():
            log.event(key, value)
    return outcome


def _until_reached(
    definition: Definition,
    task: Task,
    config: RunConfig,
    log: RunLogWriter,
    on_progress: Callable[[Progress], None],
) -> Outcome:
    """Train and evaluate, block after block, until an evaluation finds all targets to hold."""
    quality: Mapping[str, float] = {}
    samples = 0
    for block in definition.schedule(config.global_batch_size, config.eval_offset_epochs):
        log.block_start(block)
        loss = task.train(block, lambda samples: on_progress(Progress("training", samples)))
        samples = block.samples
        if not math.isfinite(loss):
            reason = f"the training loss is {loss}: {WHEN_NOT_FINITE}"
            return Outcome(False, samples, quality, reason)
        log.block_stop(block, loss)

        on_progress(Progress("evaluating", samples))
        log.eval_start(block)
        quality = task.evaluate()
        if not all(map(math.isfinite, quality.values())):
            broken = ", ".join(key for key, value in quality.items() if not math.isfinite(value))
            reason = f"the quality is not finite ({broken}): {WHEN_NOT_FINITE}"
            return Outcome(False, samples, {}, reason)
        log.quality(quality, definition.quality[0].metric, samples / definition.train_samples)
        log.eval_stop(block)
        on_progress(Progress("evaluated", samples, quality))
        if definition.reached(quality):
            return Outcome(True, samples, quality)
    reason = f"the targets were not reached within {definition.timing.max_samples} samples"
    return Outcome(False, samples, quality, reason)
