"""Ctrl-C and SIGTERM, which schedulers send: let in where they may come, kept waiting elsewhere."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN_SECONDS = 1.0


class Interruption:
    """While it is entered, both signals raise KeyboardInterrupt, but only within ``allow``.

    One that comes at another moment, while a log gets its name for instance, waits for the next
    ``allow``. Libraries swallow the exception now and then (torch's compiler does), so it is
    raised again every second until ``allow`` is left.
    """

    def __init__(self) -> None:
        self._why = ""
        self._is_possible = False

    def __enter__(self) -> "Interruption":
        signals = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
        self._before = {number: signal.signal(number, self._on_signal) for number in signals}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def allow(self) -> Iterator[None]:
        """Work that may be broken off at any moment."""
        self._is_possible = True
        try:
            self._raise_if_asked()
            yield
        finally:
            self._is_possible = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGALRM:
            self._why = self._why or f"stopped by {signal.Signals(number).name}"
        if self._is_possible:
            self._raise_if_asked()

    def _raise_if_asked(self) -> None:
        if self._why:
            signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
            raise KeyboardInterrupt(self._why)
