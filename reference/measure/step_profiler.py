"""Where the time of a training step goes: data, forward, backward, communication, update, and what
a task has beside these."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

PHASES = ("data", "forward", "backward", "communication", "update")


class Ledger:
    """Seconds of each phase of a task's steps (``TorchTask.phase``). What a phase within another
    takes is booked for the inner one alone. The device is waited for at the end of each, so that
    its time is booked where it belongs; that takes some."""

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._synchronize = synchronize
        self._within_seconds = 0.0  # of the phases within the one that is under way

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        started, before = time.perf_counter(), self._within_seconds
        self._within_seconds = 0.0
        yield
        self._synchronize()
        taken = time.perf_counter() - started
        self.seconds[phase] = self.seconds.get(phase, 0.0) + taken - self._within_seconds
        self._within_seconds = before + taken

    def shares(self, total_seconds: float) -> Mapping[str, float]:
        """Of each phase in ``total_seconds``, and of what none of them accounts for."""
        shares = {phase: seconds / total_seconds for phase, seconds in self.seconds.items()}
        return {**shares, "other": 1 - sum(shares.values())}
