"""Ctrl-C, SIGTERM of schedulers and SIGHUP: they interrupt a run only where that does no harm."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from cepheid.rules.host import handle_ending

AGAIN_SECONDS = 1.0


class Interruption:
    """A handler of these signals, which raises KeyboardInterrupt, but only within ``allow``.

    A signal that comes at another moment, for instance while a log gets its name, waits for the
    next ``allow``. Some libraries swallow the exception (torch's compiler does), so it is raised
    again every second until ``allow`` is left.
    """

    def __init__(self) -> None:
        self._reason = ""
        self._is_allowed = False
        self._on_first: Callable[[], None] | None = None

    def __enter__(self) -> "Interruption":
        self._before = handle_ending(self._on_signal)
        self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._on_signal)
        return self

    def __exit__(self, *exception: object) -> None:
        # A signal at the end of ``allow`` may have left the timer on, whose signal ends a process.
        self._is_allowed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def allow(self) -> Iterator[None]:
        """Let signals interrupt the block at any moment."""
        self._is_allowed = True
        try:
            self._raise_if_signalled()
            yield
        finally:
            self._is_allowed, self._on_first = False, None
            signal.setitimer(signal.ITIMER_REAL, 0)

    def finish_first(self, on_signal: Callable[[], None]) -> None:
        """Let the first signal wait until ``allow`` is left; a second one interrupts immediately.

        For an end of the block that should not be lost. ``on_signal`` is called at the first
        signal, in the handler: it may not print, because a print may be going on.
        """
        if not self._reason:
            self._on_first = on_signal

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGALRM:
            self._reason = self._reason or f"stopped by {signal.Signals(number).name}"
        on_first, self._on_first = self._on_first, None
        if on_first is not None:
            on_first()
        elif self._is_allowed:
            self._raise_if_signalled()

    def _raise_if_signalled(self) -> None:
        if self._reason:
            signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
            raise KeyboardInterrupt(self._reason)
