"""Where the time of a training step goes: data, forward, backward, communication, update."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

PHASES = ("data", "forward", "backward", "communication", "update")


class Ledger:
    """Seconds of each phase of a task's steps (``TorchTask.phase``). The device is waited for at
    the end of each, so that its time is booked where it belongs; that takes some."""

    def __init__(self, synchronize: Callable[[], None]) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._synchronize = synchronize

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self._synchronize()
        self.seconds[phase] += time.perf_counter() - started

    def shares(self, total_seconds: float) -> Mapping[str, float]:
        """Of each phase in ``total_seconds``, and of what none of them accounts for."""
        shares = {phase: seconds / total_seconds for phase, seconds in self.seconds.items()}
        return {**shares, "other": 1 - sum(shares.values())}
