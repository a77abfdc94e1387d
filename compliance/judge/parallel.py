"""Judge many results at once, in several processes."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from cepheid.compliance.judge.judgement import Each
from cepheid.compliance.judge.unit import JudgedUnit, Unit
from cepheid.rules.host import follow_parent, usable_processors

LOGS_FOR_PROCESSES = 64  # fewer are judged sooner than processes are started

Progress = Callable[[int, int], None]  # logs judged so far, and all of them


def use_processes(jobs: int | None, progress: Progress = lambda done, total: None) -> Each:
    """Return an ``each`` for ``judge`` that judges in ``jobs`` processes.

    None chooses the number of processes by the number of logs. The answers come in the order of
    the units, whichever process finishes first. An exception in a process is raised here, and so
    is one for a process that was killed.
    """

    def each(function: Callable[[Unit], JudgedUnit], units: Sequence[Unit]) -> Iterator[JudgedUnit]:
        logs = sum(len(unit.folder.runs) for unit in units)
        processes = min(len(units), _choose_processes(logs) if jobs is None else jobs)
        answers = (
            _map_in_pool(function, units, processes) if processes > 1 else map(function, units)
        )
        done = 0
        for unit, answer in zip(units, answers, strict=True):
            done += len(unit.folder.runs)
            progress(done, logs)
            yield answer

    return each


def _choose_processes(logs: int) -> int:
    return usable_processors() if logs >= LOGS_FOR_PROCESSES else 1


def _map_in_pool(
    function: Callable[[Unit], JudgedUnit], units: Sequence[Unit], processes: int
) -> Iterable[JudgedUnit]:
    from concurrent.futures import ProcessPoolExecutor  # here: a single log needs none of it

    chunk = max(1, min(16, len(units) // (8 * processes)))
    with ProcessPoolExecutor(processes, initializer=follow_parent) as pool:
        yield from pool.map(function, units, chunksize=chunk)
