"""Run a function in processes of its own: in one, so that its memory is its own, or on ranks."""

import atexit
import multiprocessing
import os
import random
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from cepheid.reference.machine.placement import end_rank
from cepheid.rules.errors import UserError

P = ParamSpec("P")
R = TypeVar("R")

SECONDS_TO_END = 10.0  # for the other ranks, after one has failed
KILLED = "the process of this measurement was killed; was there enough memory?"


def run_alone(function: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
    """Return what ``function``, with picklable arguments, returns in a fresh process.

    Raises what the function raises, and UserError if the process was killed.
    """
    with open_pool(1) as executor:
        try:
            return executor.submit(function, *arguments, **named).result()
        except BrokenProcessPool as error:
            raise UserError(KILLED) from error


def open_pool(count: int) -> ProcessPoolExecutor:
    """Return an executor of ``count`` fresh processes that end with this one."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(count, mp_context=context, initializer=_end_silently)


def run_on_ranks(count: int, function: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R:
    """Return what ``function`` returns on the first of ``count`` ranks on this machine.

    Each rank is a process with the variables of ``torchrun``, forked from one that has loaded torch
    and has done nothing with it. Raises what the function raises on one of them, and UserError if a
    rank was killed.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])  # once, not on every rank
    before = set(multiprocessing.active_children())
    port = str(find_free_port())
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    with ProcessPoolExecutor(count, mp_context=context, initializer=_start_rank) as executor:
        futures = [
            executor.submit(
                _call_on_rank, shared | _name_place(rank, count), function, arguments, named
            )
            for rank in range(count)
        ]
        wait(futures, return_when=FIRST_EXCEPTION)
        _, hanging = wait(futures, None if _all_returned(futures) else SECONDS_TO_END)
        if hanging:
            for process in set(multiprocessing.active_children()) - before:
                process.kill()
            wait(futures)
    errors = [error for future in futures if (error := future.exception())]
    # A rank that leaves because another one failed says nothing.
    told = [error for error in errors if not isinstance(error, SystemExit | BrokenProcessPool)]
    if told:
        raise told[0]
    if errors:
        raise UserError(KILLED) from errors[0]
    return futures[0].result()


def _all_returned(futures: Sequence[Future[Any]]) -> bool:
    return all(future.done() and future.exception() is None for future in futures)


def _name_place(rank: int, count: int) -> dict[str, str]:
    """Return the variables that ``torchrun`` sets on one machine."""
    if count == 1:
        return {}
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
    }


def find_free_port() -> int:
    """Return a port that nobody listens on, nor on the next one, where processes of Keras meet.

    It is below those from which systems take the ports of clients (32768 and more with Linux): a
    rank that tries to connect before the first one listens could otherwise get the port itself as
    its own, be connected with itself, and wait for ever.
    """
    while True:
        port = random.SystemRandom().randrange(10_000, 32_768)
        with socket.socket() as listener, socket.socket() as beside, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            beside.bind(("127.0.0.1", port + 1))
            return port


def _call_on_rank(
    environment: Mapping[str, str],
    function: Callable[..., R],
    arguments: Sequence[Any],
    named: Mapping[str, Any],
) -> R:
    os.environ.clear()  # the server's, which may have been started long ago
    os.environ.update(environment)
    try:
        return function(*arguments, **named)
    except UserError as error:  # its subclasses cannot all be sent to another process
        raise UserError(str(error)) from None


def _start_rank() -> None:
    """Prepare the process of a rank; it ends without the threads of gloo (``end_rank``)."""
    _end_silently()
    atexit.register(end_rank, 0)


def _end_silently() -> None:
    """Let Ctrl-C end this process at once; the process that the user started reports it.

    Where that process has ended otherwise, as by a scheduler, this one ends too.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)  # nobody is there to whom an error could be reported
