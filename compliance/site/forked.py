"""Make the files of a large site in several processes.

The processes are forked, so they have the site already: nothing but numbers of parts is sent to
them, and only finished files come back.
"""

import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

from rules.host import usable_processors

File = tuple[str, bytes]
Make = Callable[[int], list[File]]

RESULTS_FOR_PROCESSES = 200  # pages of fewer are made sooner than processes are started


def choose_processes(results: int) -> int:
    """Choose the number of processes for a site of so many results."""
    can_fork = "fork" in multiprocessing.get_all_start_methods()
    return usable_processors() if can_fork and results >= RESULTS_FOR_PROCESSES else 1


def make_parts(make: Make, parts: int, processes: int) -> Iterator[File]:
    """Yield the files of all parts, those of any part that is ready.

    An exception in a process is raised here, and so is one for a process that was killed.
    """
    if processes == 1:
        for part in range(parts):
            yield from make(part)
        return
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, fork, initializer=_remember, initargs=(make,)) as pool:
        for made in as_completed([pool.submit(_make_part, part) for part in range(parts)]):
            yield from made.result()


_make: Make | None = None  # of a forked process


def _remember(make: Make) -> None:
    global _make
    _make = make


def _make_part(part: int) -> list[File]:
    assert _make is not None
    return _make(part)
