"""Time several pieces of code in turns, in one process.

Whatever else the machine does then slows all of them alike. Compare medians, and show the spread
of the ratios of each turn (``divide``).
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
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


def time_steps(task: SteppingTask, steps: int) -> float:
    """Return the mean seconds of a training step, which includes reading the data."""
    task.model.train()
    task.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        task.step()
    task.synchronize()
    return (time.perf_counter() - start) / steps


def time_each(do: Callable[[Any], object], items: Sequence[Any]) -> float:
    """Return the mean seconds that ``do`` takes for one of ``items``."""
    start = time.perf_counter()
    for item in items:
        do(item)
    return (time.perf_counter() - start) / len(items)
