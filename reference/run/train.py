"""The one timed train/evaluate loop. It knows the Task protocol and the log, and no framework."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from cepheid.reference.data.verification import DataRead
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.log import RunLogWriter
from cepheid.reference.run.progress import OnProgress, Outcome, Progress, Stage, ignore_progress
from cepheid.rules.definition import Block, Definition
from cepheid.rules.evidence import find_end

WHEN_NOT_FINITE = (
    "a lower learning rate or precision=fp32 may help; `cepheid data --verify` finds damaged data"
)


class Task(Protocol):
    """The code of a benchmark for one framework. On several ranks each rank has its own task.

    A task that reports more than its quality also keeps ``cepheid.reference.run.report.Reports``.
    """

    data_digest: str
    """Digest of the prepared data, from the manifest alone."""

    def drop_caches(self) -> bool | None:
        """Drop the data files from the file caches (rule T6); False where that is impossible."""

    def build(self) -> int:
        """Make model and optimizer, and return the number of trainable parameters."""

    def warm_up(self) -> None:
        """Compile and run once on synthetic data of the real shape; the state stays as built."""

    def implementation(self) -> Mapping[str, Any]:
        """Return what a reader needs beside a time: framework, device, precision, ranks."""

    def open_data(self) -> None:
        """Open the dataset. Nothing touches it before."""

    def train(self, block: Block, on_samples: Callable[[int], None]) -> float:
        """Train to ``block.samples`` and return the mean loss of the block.

        After every step ``on_samples`` is called with the number of samples trained since the start
        of the run.
        """

    def evaluate(self) -> dict[str, float]:
        """Return all metrics over the whole evaluation set, the same on every rank."""

    def digest_data(self) -> DataRead:
        """Digest what the run read, after the clock has stopped; on every rank (rule T27)."""

    def synchronize(self) -> None:
        """Wait for this rank's device and for all other ranks."""

    def state(self) -> Mapping[str, Any]:
        """Return the weights and all else that training needs to go on, for a checkpoint."""


@runtime_checkable
class StartsFromWeights(Protocol):
    """A task whose training may start from weights that somebody else has trained (rule T25)."""

    given_digest: str | None
    """SHA-256 of the file with the weights, once they are loaded; None if there are none."""


@runtime_checkable
class MeasuresAfterwards(Protocol):
    """A task that measures something after the clock has stopped, which enters no score."""

    def measure_afterwards(self) -> Mapping[str, float]:
        """Return the events of the phase after ``run_stop`` and their values.

        It is called on every rank, and leaves the state of the task as it is.
        """


def run(
    definition: Definition,
    task: Task,
    config: RunConfig,
    log: RunLogWriter,
    on_progress: OnProgress = ignore_progress,
) -> Outcome:
    """Train until every quality target holds or the budget is spent, and log it (T2 to T11)."""
    with log.before_the_clock():
        log.write_identity(config)
        log.event("cache_clear", task.drop_caches() is not False)
        with log.initialisation():
            on_progress(Progress(Stage.INITIALISING))
            log.write_settings(config)
            log.event("data_digest", task.data_digest)
            log.event("model_parameters", task.build())
            task.warm_up()
            if isinstance(task, StartsFromWeights) and task.given_digest:
                log.event("weights_digest", task.given_digest)
            log.event("implementation", config.complete_implementation(task.implementation()))
        task.synchronize()
    with log.time_run() as timed:
        task.open_data()
        outcome = _train_until_reached(definition, task, config, log, on_progress)
        task.synchronize()
        timed.end(reached=outcome.reached, reason=outcome.reason)
    if outcome.reached and isinstance(task, MeasuresAfterwards):
        on_progress(Progress(Stage.MEASURING, outcome.samples))
        for key, value in task.measure_afterwards().items():
            log.event(key, value)
    return outcome


def _train_until_reached(
    definition: Definition,
    task: Task,
    config: RunConfig,
    log: RunLogWriter,
    on_progress: OnProgress,
) -> Outcome:
    """Train and evaluate, block after block, until all targets hold as the definition says."""
    quality: Mapping[str, float] = {}
    samples, qualities = 0, list[Mapping[str, float]]()
    for block in definition.schedule(config.global_batch_size, config.eval_offset_epochs):
        log.start_block(block)
        loss = task.train(block, lambda samples: on_progress(Progress(Stage.TRAINING, samples)))
        samples = block.samples
        if not math.isfinite(loss):
            reason = f"the training loss is {loss}: {WHEN_NOT_FINITE}"
            return Outcome(False, samples, quality, reason, is_finite=False)
        log.stop_block(block, loss)

        on_progress(Progress(Stage.EVALUATING, samples))
        log.start_evaluation()
        quality = task.evaluate()
        if not all(map(math.isfinite, quality.values())):
            broken = ", ".join(key for key, value in quality.items() if not math.isfinite(value))
            reason = f"the quality is not finite ({broken}): {WHEN_NOT_FINITE}"
            return Outcome(False, samples, {}, reason, is_finite=False)
        log.write_quality(quality, definition, samples / definition.train_samples)
        log.stop_evaluation()
        on_progress(Progress(Stage.EVALUATED, samples, quality))
        qualities.append(quality)
        if find_end(qualities, definition) is not None:
            return Outcome(True, samples, quality)
    return Outcome(False, samples, quality, "the targets were not reached")
