"""Measure what the timed loop costs beside the task's own code."""

import math
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cepheid.measure.engine.turns import SteppingTask
from cepheid.reference.data.verification import DataRead
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.log import RunLogWriter
from cepheid.reference.run.progress import OnProgress
from cepheid.reference.run.train import run
from cepheid.rules.definition import Block, Definition

UNREACHABLE = 1e9
"""A quality target beyond every metric, so that the loop spends its whole budget."""


def time_bare_loop(task: SteppingTask, config: RunConfig) -> float:
    """Return the seconds of all steps and evaluations of a run, without log and display."""
    task.samples = 0
    start = time.perf_counter()
    for block in config.definition.schedule(config.global_batch_size, config.eval_offset_epochs):
        task.model.train()
        while task.samples < block.samples:
            task.step()
        task.evaluate()
    task.synchronize()
    return time.perf_counter() - start


@dataclass(frozen=True)
class TimedLoop:
    """The seconds from ``run_start`` to ``run_stop``, and those outside the task's own code."""

    seconds: float
    harness_seconds: float

    @property
    def harness_share(self) -> float:
        """The share of the loop that was spent outside the task's own code."""
        return self.harness_seconds / self.seconds


def time_run_loop(
    task: Any, config: RunConfig, display: AbstractContextManager[OnProgress]
) -> TimedLoop:
    """Time the steps and evaluations of a run as ``train.run`` does them, with log and display."""
    task.samples = 0
    with tempfile.TemporaryDirectory() as folder, display as on_progress:
        log = RunLogWriter(Path(folder) / "result_0.txt")
        initialised: Any = InitialisedTask(task)
        run(config.definition, initialised, config, log, on_progress)
        seconds = time.perf_counter() - initialised.start
        log.close()
        return TimedLoop(seconds, seconds - initialised.task_seconds)


class InitialisedTask:
    """A task that is already built and has its data open, so that only the loop is left to do.

    ``start`` is when the loop began, ``task_seconds`` the time spent in the task since then. What
    is not timed here is the task's own.
    """

    def __init__(self, task: Any) -> None:
        self.task = task
        self.start = math.nan
        self.task_seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def do_nothing(self) -> int:
        """Do nothing; return 0 parameters."""
        return 0

    drop_caches = build = warm_up = do_nothing

    def open_data(self) -> None:
        """Start the clock: the timed part of a run begins here."""
        self.task_seconds = 0.0
        self.start = time.perf_counter()

    def train(self, block: Block, on_samples: Callable[[int], None]) -> float:
        """Train the task, and do not count the time that ``on_samples`` takes."""

        def time_on_samples(samples: int) -> None:
            before = time.perf_counter()
            on_samples(samples)
            self.task_seconds -= time.perf_counter() - before

        with self._count_time():
            loss: float = self.task.train(block, time_on_samples)
        return loss

    def evaluate(self) -> dict[str, float]:
        """Evaluate the task."""
        with self._count_time():
            quality: dict[str, float] = self.task.evaluate()
        return quality

    def synchronize(self) -> None:
        """Wait for the device of the task."""
        with self._count_time():
            self.task.synchronize()

    @contextmanager
    def _count_time(self) -> Iterator[None]:
        before = time.perf_counter()
        yield
        self.task_seconds += time.perf_counter() - before

    def digest_data(self) -> DataRead:
        """Return the digest that the task names; no run is made here."""
        return DataRead(self.task.data_digest)


def shorten_definition(definition: Definition, blocks: int) -> Definition:
    """Return the definition with unreachable targets and a budget of ``blocks`` blocks.

    One that generates makes each of its numbers of images once.
    """
    if generation := definition.generation:
        once = replace(generation, repetitions=(1,) * len(generation.counts))
        return replace(definition, generation=once)
    quality = tuple(
        replace(target, target=-UNREACHABLE if target.better == "lower" else UNREACHABLE)
        for target in definition.quality
    )
    timing = replace(definition.timing, max_samples=blocks * definition.timing.eval_every_samples)
    return replace(definition, quality=quality, timing=timing)
