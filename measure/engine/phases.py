"""Where the time of training steps goes: the seconds of each phase of a ``Trainer``."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

PHASES = ("data", "forward", "backward", "communication", "update")
"""The phases of every task; a task may have more."""


class StepProfiler:
    """The seconds of each phase of a task's steps, to be set as ``Trainer.phase``.

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
    """Take ``steps`` training steps of a ``Trainer`` and profile them."""
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
