"""Judging many results at once, in several processes."""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace

from compliance.finding import Finding
from compliance.judge.judgement import Each, Unit
from rules.host import usable_processors

LOGS_FOR_PROCESSES = 64  # fewer are judged sooner than processes are started

Progress = Callable[[int, int], None]  # logs judged so far, and all of them


def judging(jobs: int | None, progress: Progress) -> Each:
    """An ``each`` for ``judge`` that keeps no log once it is judged.

    ``jobs`` is the number of processes; None chooses by the number of logs. The answers come in the
    order of the units whoever is done first. An exception in a process is raised here, and so is
    one for a process that was killed.
    """

    def each(
        function: Callable[[Unit], list[Finding]], units: Sequence[Unit]
    ) -> Iterator[list[Finding]]:
        logs = sum(len(unit.folder.runs) for unit in units)
        processes = min(len(units), _processes(logs) if jobs is None else jobs)
        answers = _apart(function, units, processes) if processes > 1 else _here(function, units)
        done = 0
        for unit, answer in zip(units, answers, strict=True):
            done += len(unit.folder.runs)
            progress(done, logs)
            yield answer

    return each


def _processes(logs: int) -> int:
    return usable_processors() if logs >= LOGS_FOR_PROCESSES else 1


def _here(
    function: Callable[[Unit], list[Finding]], units: Sequence[Unit]
) -> Iterator[list[Finding]]:
    for unit in units:
        folder = unit.folder  # copies of its logs are read, and forgotten with this round
        fresh = replace(
            folder,
            runs=copy(folder.runs),
            interrupted=copy(folder.interrupted),
            power=copy(folder.power),
        )
        yield function(replace(unit, folder=fresh))


def _apart(
    function: Callable[[Unit], list[Finding]], units: Sequence[Unit], processes: int
) -> Iterator[list[Finding]]:
    from concurrent.futures import ProcessPoolExecutor  # here: a single log needs none of it

    chunk = max(1, min(16, len(units) // (8 * processes)))
    with ProcessPoolExecutor(processes) as pool:
        yield from pool.map(function, units, chunksize=chunk)
