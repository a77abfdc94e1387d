"""How fast the reference is against something simpler that does the same, in one process.

The two take turns, so that whatever else the machine does meets both; medians are compared, and
their spread is told beside them.
"""

import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from reference.run.config import RunConfig
from reference.run.log import RunLogWriter
from reference.run.progress import OnProgress
from reference.run.train import run
from rules.definition import Block, Definition

Display = AbstractContextManager[OnProgress]
UNREACHABLE = 1e9  # a quality target on the wrong side of everything: the loop spends its budget


class SteppingTask(Protocol):
    """A task (``train.Task``) whose steps can be taken one by one; ``samples`` counts them."""

    model: Any
    samples: int

    def step(self) -> Any:
        """One training step."""

    def evaluate(self) -> dict[str, float]:
        """All metrics over the whole evaluation set."""

    def synchronize(self) -> None:
        """Wait for the device."""


@dataclass(frozen=True)
class Timing:
    """Repeated measurements of one thing."""

    label: str
    seconds: tuple[float, ...]

    @property
    def median_seconds(self) -> float:
        """The middle one."""
        return statistics.median(self.seconds)

    @property
    def quartiles_seconds(self) -> tuple[float, float]:
        """A quarter of them is below the first, a quarter above the second."""
        first, _, third = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return first, third


@dataclass(frozen=True)
class Comparison:
    """Two timings of the same work that were taken in turns."""

    what: str
    baseline: Timing
    reference: Timing

    @property
    def ratio(self) -> float:
        """How many times as long as the reference the baseline takes, in the median."""
        return self.baseline.median_seconds / self.reference.median_seconds

    @property
    def overhead(self) -> float:
        """The time that the reference takes beyond the baseline, as a share of the baseline."""
        return self.reference.median_seconds / self.baseline.median_seconds - 1

    def as_json(self) -> dict[str, Any]:
        """All measurements and what is computed from them."""
        return {
            **asdict(self),
            "ratio_of_medians": self.ratio,
            "overhead": self.overhead,
        }


def in_turns(what: str, rounds: int, measures: Mapping[str, Callable[[], float]]) -> Comparison:
    """Measure a baseline and the reference, in this order, ``rounds`` times in turns.

    Each of the two ``measures`` returns seconds. A round before the first one does not count. Which
    of the two begins changes from round to round, so that neither always follows the other.
    """
    seconds: dict[str, list[float]] = {label: [] for label in measures}
    for turn in range(rounds + 1):
        for label in list(measures)[:: -1 if turn % 2 else 1]:
            taken = measures[label]()
            if turn:
                seconds[label].append(taken)
    baseline, reference = (Timing(label, tuple(values)) for label, values in seconds.items())
    return Comparison(what, baseline, reference)


def step_seconds(task: SteppingTask, steps: int) -> float:
    """Of one training step, as a run does it: read, reorient, forwards, backwards, update."""
    task.model.train()
    task.synchronize()
    started = time.perf_counter()
    for _ in range(steps):
        task.step()
    task.synchronize()
    return (time.perf_counter() - started) / steps


def seconds_each(do: Callable[[Any], object], items: Sequence[Any]) -> float:
    """Mean time that ``do`` takes for one of ``items``."""
    started = time.perf_counter()
    for item in items:
        do(item)
    return (time.perf_counter() - started) / len(items)


def bare_loop_seconds(task: SteppingTask, config: RunConfig) -> float:
    """Of all steps and evaluations of a run, and nothing else."""
    task.samples = 0
    started = time.perf_counter()
    for block in config.definition.schedule(config.global_batch_size, config.eval_offset_epochs):
        task.model.train()
        while task.samples < block.samples:
            task.step()
        task.evaluate()
    task.synchronize()
    return time.perf_counter() - started


@dataclass(frozen=True)
class TimedLoop:
    """From ``run_start`` to ``run_stop``, and how much of that the task's own code did not take."""

    seconds: float
    harness_seconds: float

    @property
    def harness_share(self) -> float:
        """Of the loop."""
        return self.harness_seconds / self.seconds


def timed_loop(task: Any, config: RunConfig, display: Display) -> TimedLoop:
    """The same steps and evaluations in ``train.run``, with its log and a display."""
    task.samples = 0
    with tempfile.TemporaryDirectory() as folder, display as on_progress:
        log = RunLogWriter(Path(folder) / "result_0.txt")
        initialised = Initialised(task)
        run(config.definition, initialised, config, log, on_progress)
        seconds = time.perf_counter() - initialised.started_seconds
        log.close()
        return TimedLoop(seconds, seconds - initialised.task_seconds)


class Initialised:
    """A task that is already built and has its data open: only the loop is left to do."""

    def __init__(self, task: Any) -> None:
        self.task = task
        self.data_digest: str = task.data_digest
        self.started_seconds = math.nan
        self.task_seconds = 0.0

    def drop_caches(self) -> None:
        """Done."""

    def build(self) -> int:
        """Done."""
        return 0

    def warm_up(self) -> None:
        """Done."""

    def open_data(self) -> None:
        """Done; the timed part begins here."""
        self.task_seconds = 0.0
        self.started_seconds = time.perf_counter()

    def implementation(self) -> Mapping[str, Any]:
        """The task's."""
        told: Mapping[str, Any] = self.task.implementation()
        return told

    def train(self, block: Block, on_samples: Callable[[int], None]) -> float:
        """The task's, without the time that ``on_samples`` takes."""

        def timed_on_samples(samples: int) -> None:
            before = time.perf_counter()
            on_samples(samples)
            self.task_seconds -= time.perf_counter() - before

        with self._timed():
            loss: float = self.task.train(block, timed_on_samples)
        return loss

    def evaluate(self) -> dict[str, float]:
        """The task's."""
        with self._timed():
            quality: dict[str, float] = self.task.evaluate()
        return quality

    def synchronize(self) -> None:
        """The task's."""
        with self._timed():
            self.task.synchronize()

    @contextmanager
    def _timed(self) -> Iterator[None]:
        before = time.perf_counter()
        yield
        self.task_seconds += time.perf_counter() - before

    def state(self) -> Mapping[str, Any]:
        """The task's."""
        state: Mapping[str, Any] = self.task.state()
        return state


def shortened(definition: Definition, blocks: int) -> Definition:
    """``definition`` with targets out of reach and a budget of so many blocks; where it generates,
    with one repetition of each number of images."""
    if asked := definition.generation:
        once = replace(asked, repetitions=(1,) * len(asked.counts))
        return replace(definition, generation=once)
    quality = tuple(
        replace(target, target=-UNREACHABLE if target.better == "lower" else UNREACHABLE)
        for target in definition.quality
    )
    timing = replace(definition.timing, max_samples=blocks * definition.timing.eval_every_samples)
    return replace(definition, quality=quality, timing=timing)
