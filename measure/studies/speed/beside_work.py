"""Train or generate beside other work: what of a fair share of the processors is lost.

A competing process computes on one processor, or on each, all the time. A fair share is half of
these processors and all of the others. The processes that work are new in each case, because they
choose their threads by the load that they find: threads wait for each other at every operation, so
beside a competitor on each processor one process chooses one. Ranks wait less often, so a rank for
each processor is measured as well. Each works as many steps as the first one, which works alone:
the first steps of a training can differ from later ones, as those of K-FAC with stale factors do.
"""

import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cepheid.benchmarks.registry import import_task
from cepheid.measure.engine.noise import NO_DATA, REAL
from cepheid.measure.engine.own_process import run_alone, run_on_ranks
from cepheid.measure.engine.turns import configure_open, make_task, pick_create
from cepheid.reference.run.generate import time_repetition
from cepheid.reference.session.observer import OnCount
from cepheid.rules import definition as definitions
from cepheid.rules.host import usable_processors

SECONDS_ALONE, STEPS_MIN = 10.0, 3
STEPS_OF_COMPETITOR = 100_000  # some milliseconds


@dataclass(frozen=True)
class Pace:
    """How fast ``ranks`` worked together, each on how many threads, and why on so many.

    It is that of the first ``steps``.
    """

    per_second: float
    threads: int
    because: str
    steps: int
    ranks: int = 1
    unit: str = "samples"

    def __str__(self) -> str:
        """Return ``150 samples/s on 2 threads``, or ``on 2 ranks of 1 thread``."""
        on = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        if self.ranks > 1:
            on = f"{self.ranks} ranks of {on}"
        return f"{self.per_second:,.4g} {self.unit}/s on {on}"


@dataclass(frozen=True)
class Case:
    """How fast a work was beside so many competitors, each on a processor of its own."""

    what: str
    competitors: int
    pace: Pace


@dataclass(frozen=True)
class BesideWork:
    """The pace alone on so many processors, and beside competitors."""

    processors: int
    alone: Pace
    cases: tuple[Case, ...]

    def find_loss(self, case: Case) -> float:
        """Return the time of a sample beside other work over that of a fair share.

        1 loses nothing.
        """
        fair_share = 1 - case.competitors / (2 * self.processors)
        return fair_share * self.alone.per_second / case.pace.per_second

    def as_json(self) -> dict[str, Any]:
        """Return all, and what is lost."""
        cases = [
            {**asdict(case), "times_of_a_fair_share": self.find_loss(case)} for case in self.cases
        ]
        return {"processors": self.processors, "alone": asdict(self.alone), "cases": cases}


def compare_with_fair_share(
    name: str,
    scale: str,
    overrides: Sequence[str],
    data_root: Path,
    on_pace: OnCount = lambda done, total: None,
) -> BesideWork:
    """Work for some seconds alone, then as much beside one competitor and beside one on each.

    Where there is one processor, or where ranks cannot share the batch evenly, there are fewer
    cases. ``on_pace`` hears how many of the paces are known.
    """
    request = name, scale, tuple(overrides), data_root
    definition, count = definitions.load(name, scale), usable_processors()
    can_share = count > 1
    if definition.kind == "train":
        config = configure_open(definition, overrides=overrides)
        can_share = can_share and config.global_batch_size % count == 0
    wanted = [("one process", 1)] if count > 1 else []
    wanted.append(("one process", count))
    if can_share:
        wanted.append(("a rank on each processor", count))
    alone = run_alone(measure_pace, *request)
    on_pace(1, 1 + len(wanted))
    cases: list[Case] = []
    for done, (what, competitors) in enumerate(wanted, 2):
        with compete(competitors):
            if what == "one process":
                pace = run_alone(measure_pace, *request, alone.steps)
            else:
                pace = run_on_ranks(count, measure_pace, *request, alone.steps)
        cases.append(Case(what, competitors, pace))
        on_pace(done, 1 + len(wanted))
    return BesideWork(count, alone, tuple(cases))


def measure_pace(
    name: str, scale: str, overrides: Sequence[str], data_root: Path, steps: int | None = None
) -> Pace:
    """Make a task ready under the present load, and work so many steps in this process.

    Without ``steps`` it works for SECONDS_ALONE.
    """
    from cepheid.reference.torch.ranks.distributed import start_ranks

    definition = definitions.load(name, scale)
    config = configure_open(definition, overrides=overrides, data_root=data_root)
    with start_ranks() as ranks:
        asked = definition.generation
        create = pick_create(import_task(definition, "torch"))
        task = make_task(config, ranks, create, inputs=NO_DATA if asked else REAL)
        step = _start_generating(task, asked.counts) if asked else _start_training(task)
        step()
        done, made, began = 0, 0, time.monotonic()

        def is_enough() -> bool:
            if steps is not None:
                return made >= steps
            return made >= STEPS_MIN and time.monotonic() - began >= SECONDS_ALONE

        # One clock decides for all ranks, which must make the same number of steps.
        while not ranks.broadcast(is_enough()):
            done += step()
            made += 1
        per_second = done / (time.monotonic() - began)
        how = task.implementation()
        because = how["execution"]["because"].get("threads", "")
        unit = "images" if asked else "samples"
        return Pace(per_second, how["threads_per_rank"], because, made, how["ranks"], unit)


def _start_training(task: Any) -> Callable[[], int]:
    """Return a function that makes a step and returns its samples, those of all ranks."""
    task.model.train()

    def step() -> int:
        before = task.samples
        task.step()
        task.synchronize()
        return int(task.samples - before)

    return step


def _start_generating(task: Any, counts: Sequence[int]) -> Callable[[], int]:
    """Return a function that generates the middle number of images, on all ranks together.

    It returns that number.
    """
    images, repetitions = counts[len(counts) // 2], itertools.count()

    def step() -> int:
        time_repetition(task, images, next(repetitions))
        return images

    return step


@contextmanager
def compete(count: int) -> Iterator[list[int]]:
    """Let a process compute on each of so many processors meanwhile; yield their ids."""
    places: list[int | None] = [None] * count
    if hasattr(os, "sched_getaffinity"):
        places = [*sorted(os.sched_getaffinity(0))[:count]]
    start = multiprocessing.get_context("spawn").Process
    processes = [start(target=_compute, args=(one, os.getpid()), daemon=True) for one in places]
    try:
        for process in processes:
            process.start()
        yield [process.pid or 0 for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.join()


def _compute(place: int | None, parent: int) -> None:
    """Compute on one processor until the process that started this one has ended, however."""
    if place is not None:
        os.sched_setaffinity(0, {place})
    value = 1.0
    while os.getppid() == parent:
        for _ in range(STEPS_OF_COMPETITOR):
            value = value * 1.0000001 % 2.0
