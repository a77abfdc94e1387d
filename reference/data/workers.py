"""Worker processes that prepare data; they end with their parent, however it ends."""

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from cepheid.reference.data.store import StoreError
from cepheid.rules.host import follow_parent, usable_processors

# They are read when a process starts.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_processes(
    work: Callable[[Item], Result], todo: Sequence[Item], processes: int | None, folder: Path
) -> Generator[tuple[Item, Result], None, None]:
    """Call ``work`` on each of ``todo``; yield each item with its result, in any order.

    The work is for ``folder``, which messages name. ``processes`` defaults to the usable
    processors; 1 means that this process does the work. Raises StoreError if a process was killed.
    """
    count = min(processes or usable_processors(), len(todo))
    if count <= 1:
        for item in todo:
            yield item, work(item)
        return
    waiting = list(reversed(todo))
    running: dict[Future[Result], Item] = {}
    # Spawned, not forked: the caller may have started threads, of torch for instance.
    with (
        _one_thread_per_child(),
        ProcessPoolExecutor(count, get_context("spawn"), _start_worker, (work,)) as pool,
    ):
        try:
            # Each worker has one item at a time, so that an interruption takes effect quickly.
            while waiting or running:
                while waiting and len(running) < count:
                    item = waiting.pop()
                    running[pool.submit(_do_in_worker, item)] = item
                ready, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in ready:
                    yield running.pop(future), future.result()
        except BrokenProcessPool as error:
            raise StoreError(
                f"{folder}: a worker process ended too early. It was killed, perhaps for lack "
                f"of memory, or it could not start and its own message is above this one. Prepare "
                f"again with fewer processes (1 needs no worker); finished chunks are kept."
            ) from error


@contextmanager
def _one_thread_per_child() -> Iterator[None]:
    """Let processes that start in this block use one thread each."""
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


_work: Callable[[Any], Any]
"""The work of a worker process. It is sent once, because a plan may be large."""


def _start_worker(work: Callable[[Any], Any]) -> None:
    global _work
    _work = work
    follow_parent()


def _do_in_worker(item: Any) -> Any:
    return _work(item)
