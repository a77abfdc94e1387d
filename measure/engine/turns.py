"""Time several pieces of code in turns, in one process, and where the time of a step goes.

Whatever else the machine does then slows all of them alike. Compare medians, and show the spread
of the ratios of each turn (``divide``).
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from cepheid.reference.session.observer import OnCount


class SteppingTask(Protocol):
    """A task of the timed loop that can take single steps and counts its samples."""

    model: Any
    samples: int

    def step(self) -> Any:
        """Take one training step."""

    def evaluate(self) -> dict[str, float]:
        """Return all metrics over the whole evaluation set."""

    def synchronize(self) -> None:
        """Wait for the device."""


@dataclass(frozen=True)
class Timing:
    """Repeated measurements of one piece of code, in seconds."""

    label: str
    seconds: tuple[float, ...]

    @property
    def median_seconds(self) -> float:
        """The median of all measurements."""
        return statistics.median(self.seconds)

    @property
    def quartiles_seconds(self) -> tuple[float, float]:
        """The first and the third quartile: half of the measurements lie between them."""
        return find_middle_half(self.seconds)


@dataclass(frozen=True)
class Comparison:
    """Two timings of the same work, measured in turns."""

    what: str
    baseline: Timing
    reference: Timing

    @property
    def ratio(self) -> float:
        """The median time of the baseline over that of the reference."""
        return self.baseline.median_seconds / self.reference.median_seconds

    @property
    def overhead(self) -> float:
        """The median time that the reference takes beyond the baseline, over the baseline's."""
        return self.reference.median_seconds / self.baseline.median_seconds - 1

    def as_json(self) -> dict[str, Any]:
        """Return all measurements, the ratio and the overhead."""
        return {**asdict(self), "ratio_of_medians": self.ratio, "overhead": self.overhead}


def find_middle_half(values: Sequence[float]) -> tuple[float, float]:
    """Return the first and the third quartile."""
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return first, third


def divide(timing: Timing, baseline: Timing) -> tuple[float, float, float]:
    """Return the ratio of the median times, and the quartiles of the ratios of each turn.

    Both were timed in the same turns.
    """
    pairs = zip(timing.seconds, baseline.seconds, strict=True)
    low, high = find_middle_half([mine / other for mine, other in pairs])
    return timing.median_seconds / baseline.median_seconds, low, high


def time_in_turns(
    rounds: int,
    measures: Mapping[str, Callable[[], float]],
    on_round: OnCount = lambda done, total: None,
) -> tuple[Timing, ...]:
    """Call all ``measures``, each of which returns seconds, ``rounds`` times in turns.

    A round before the first one does not count. The order is reversed from round to round, so that
    none always follows the same other one. ``on_round`` is called with the rounds that are done,
    and all of them. Returns a timing for each measure, in their order.
    """
    seconds: dict[str, list[float]] = {label: [] for label in measures}
    for turn in range(rounds + 1):
        for label in list(measures)[:: -1 if turn % 2 else 1]:
            elapsed = measures[label]()
            if turn:
                seconds[label].append(elapsed)
        on_round(turn + 1, rounds + 1)
    return tuple(Timing(label, tuple(values)) for label, values in seconds.items())


def take_steps(task: SteppingTask, steps: int) -> None:
    """Take training steps and wait until the device has done them."""
    task.model.train()
    for _ in range(steps):
        task.step()
    task.synchronize()


def time_steps(task: SteppingTask, steps: int) -> float:
    """Return the mean seconds of a training step, which includes reading the data."""
    task.model.train()
    task.synchronize()
    return time_once(lambda: take_steps(task, steps)) / steps


def time_once(work: Callable[[], object]) -> float:
    """Return the seconds that ``work`` takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def time_each(do: Callable[[Any], object], items: Sequence[Any]) -> float:
    """Return the mean seconds that ``do`` takes for one of ``items``."""
    return time_once(lambda: [do(item) for item in items]) / len(items)


PHASES = ("data", "forward", "backward", "communication", "update")
"""The phases of every task; a task may have more."""


class StepProfiler:
    """The seconds of each phase of a task's steps, to be set as ``TorchTask.phase``.

    The time of a phase inside another one counts for the inner one alone. Each phase ends with
    ``synchronize``, so that the time of the device counts for the phase that used it; waiting makes
    a profiled step somewhat slower than an ordinary one.
    """

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._synchronize = synchronize
        self._inner_seconds = 0.0  # of the phases inside the current one

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Count the time inside the block for ``phase``."""
        start, outer_seconds = time.perf_counter(), self._inner_seconds
        self._inner_seconds = 0.0
        yield
        self._synchronize()
        elapsed = time.perf_counter() - start
        self.seconds[phase] = self.seconds.get(phase, 0.0) + elapsed - self._inner_seconds
        self._inner_seconds = outer_seconds + elapsed


@dataclass(frozen=True)
class StepProfile:
    """The mean seconds of a step, and those of each of its phases."""

    seconds: float
    phase_seconds: Mapping[str, float]

    @property
    def other_seconds(self) -> float:
        """The mean seconds of a step outside all phases."""
        return self.seconds - sum(self.phase_seconds.values())

    @property
    def phases_ms(self) -> Mapping[str, float]:
        """The milliseconds of each phase and of all other time."""
        phases = {**self.phase_seconds, "other": self.other_seconds}
        return {phase: 1000 * seconds for phase, seconds in phases.items()}

    @property
    def shares(self) -> Mapping[str, float]:
        """The share of each phase and of all other time."""
        phases = {**self.phase_seconds, "other": self.other_seconds}
        return {phase: seconds / self.seconds for phase, seconds in phases.items()}


def profile_steps(task: Any, steps: int, on_step: Callable[[], None] = lambda: None) -> StepProfile:
    """Take ``steps`` training steps of a ``TorchTask`` and profile them."""
    before = task.phase
    task.phase = profiler = StepProfiler(task.finish_phase)
    task.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        task.step()
        on_step()
    task.synchronize()
    seconds = (time.perf_counter() - start) / steps
    task.phase = before
    return StepProfile(seconds, {phase: total / steps for phase, total in profiler.seconds.items()})
