"""Run a function in a process of its own, so that its peak of memory is its own."""

import multiprocessing
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import ParamSpec, TypeVar

from rules.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")


def run_alone(function: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
    """Return what ``function``, with picklable arguments, returns in a fresh process.

    Raises what the function raises, and UserError if the process was killed.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, initializer=_end_silently) as executor:
        try:
            return executor.submit(function, *arguments, **named).result()
        except BrokenProcessPool as error:
            raise UserError(
                "the process of this measurement was killed; was there enough memory?"
            ) from error


def _end_silently() -> None:
    """Let Ctrl-C end this process at once; the process that the user started reports it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
