"""Measure where the time of a training step goes, phase by phase."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

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
        start, outer_seconds = time.perf_counter(), self._inner_seconds
        self._inner_seconds = 0.0
        yield
        self._synchronize()
        elapsed = time.perf_counter() - start
        self.seconds[phase] = self.seconds.get(phase, 0.0) + elapsed - self._inner_seconds
        self._inner_seconds = outer_seconds + elapsed

    def shares(self, total_seconds: float) -> Mapping[str, float]:
        """Return the share of each phase in ``total_seconds``, and that of all other time."""
        shares = {phase: seconds / total_seconds for phase, seconds in self.seconds.items()}
        return {**shares, "other": 1 - sum(shares.values())}
