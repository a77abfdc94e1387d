"""Make the files of a large site in several processes.

The processes are forked, so they have the site already: nothing but numbers of parts is sent to
them, and only finished files come back.
"""

import multiprocessing
import sys
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor, as_completed

from cepheid.rules.host import follow_parent, usable_processors

File = tuple[str, bytes]
Make = Callable[[int], list[File]]

RESULTS_FOR_PROCESSES = 200  # pages of fewer are made sooner than processes are started


def choose_processes(results: int) -> int:
    """Choose the number of processes for a site of so many results.

    macOS can fork, but its own libraries may then end the process.
    """
    can_fork = "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"
    return usable_processors() if can_fork and results >= RESULTS_FOR_PROCESSES else 1


def make_parts(make: Make, parts: int, processes: int) -> Generator[File, None, None]:
    """Yield the files of all parts, those of any part that is ready.

    An exception in a process is raised here, and so is one for a process that was killed. Then, or
    where the caller wants no more, parts that no process has begun are not made.
    """
    if processes == 1:
        for part in range(parts):
            yield from make(part)
        return
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, fork, initializer=_remember, initargs=(make,)) as pool:
        try:
            for made in as_completed([pool.submit(_make_part, part) for part in range(parts)]):
                yield from made.result()
        finally:
            pool.shutdown(cancel_futures=True)


_make: Make | None = None  # of a forked process


def _remember(make: Make) -> None:
    global _make
    _make = make
    follow_parent()


def _make_part(part: int) -> list[File]:
    assert _make is not None
    return _make(part)
