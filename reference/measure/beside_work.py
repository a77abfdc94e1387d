"""Train or generate beside other work: what of a fair share of the processors is lost.

A competing process computes on each processor all the time, so half of them is a fair share. The
processes that work are new in each case, because they choose their threads by the load that they
find: threads wait for each other at every operation, so one process chooses one. Ranks wait less
often, so a rank for each processor is measured as well.
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

from reference.measure.own_process import run_alone, run_on_ranks
from reference.run.config import configure
from reference.run.generate import time_repetition
from reference.session.frameworks import import_task
from reference.session.observer import OnCount
from rules import definition as definitions
from rules.host import usable_processors

SECONDS, STEPS_MIN = 15.0, 3
FAIR_SHARE = 0.5
STEPS_OF_COMPETITOR = 100_000  # some milliseconds


@dataclass(frozen=True)
class Pace:
    """How fast ``ranks`` worked together, each on how many threads, and why on so many."""

    per_second: float
    threads: int
    because: str
    ranks: int = 1
    unit: str = "samples"

    def __str__(self) -> str:
        """Return ``150 samples/s on 2 threads``, or ``on 2 ranks of 1 thread``."""
        on = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        if self.ranks > 1:
            on = f"{self.ranks} ranks of {on}"
        return f"{self.per_second:,.4g} {self.unit}/s on {on}"


@dataclass(frozen=True)
class BesideWork:
    """The pace alone, and beside competitors in one process and with a rank for each processor.

    ``ranks`` is None where there is one processor, or where ranks cannot share the batch evenly.
    """

    alone: Pace
    process: Pace
    ranks: Pace | None

    def find_loss(self, beside: Pace) -> float:
        """Return the time of a sample beside other work over that of a fair share.

        1 loses nothing.
        """
        return FAIR_SHARE * self.alone.per_second / beside.per_second

    def as_json(self) -> dict[str, Any]:
        """Return all, and what is lost."""
        times = {"process": self.find_loss(self.process)}
        if self.ranks:
            times["ranks"] = self.find_loss(self.ranks)
        return {**asdict(self), "times_of_a_fair_share": times}


def compare_with_fair_share(
    name: str,
    scale: str,
    overrides: Sequence[str],
    data_root: Path,
    on_pace: OnCount = lambda done, total: None,
) -> BesideWork:
    """Work for some seconds alone, then beside a competitor on each processor.

    ``on_pace`` hears how many of the paces are known.
    """
    request = name, scale, tuple(overrides), data_root
    definition, count = definitions.load(name, scale), usable_processors()
    can_share = count > 1
    if definition.kind == "train":
        config = configure(definition, division="open", overrides=overrides)
        can_share = can_share and config.global_batch_size % count == 0
    total = 3 if can_share else 2
    alone = run_alone(measure_pace, *request)
    on_pace(1, total)
    with compete():
        process = run_alone(measure_pace, *request)
        on_pace(2, total)
        ranks = run_on_ranks(count, measure_pace, *request) if can_share else None
    return BesideWork(alone, process, ranks)


def measure_pace(name: str, scale: str, overrides: Sequence[str], data_root: Path) -> Pace:
    """Make a task ready under the present load, and work in this process for SECONDS."""
    from reference.measure.speed import make_ready_task, pick_create
    from reference.torch.distributed import start_ranks

    definition = definitions.load(name, scale)
    config = configure(
        definition, division="open", overrides=overrides, data_root=data_root, seed=1
    )
    with start_ranks() as ranks:
        task = make_ready_task(pick_create(import_task(definition, "torch")), config, ranks)
        asked = definition.generation
        step = _start_generating(task, asked.counts) if asked else _start_training(task)
        step()
        done, steps, began = 0, 0, time.monotonic()
        # One clock decides for all ranks, which must make the same number of steps.
        while ranks.broadcast(steps < STEPS_MIN or time.monotonic() - began < SECONDS):
            done += step()
            steps += 1
        per_second = done / (time.monotonic() - began)
        how = task.implementation()
        because = how["execution"]["because"].get("threads", "")
        unit = "images" if asked else "samples"
        return Pace(per_second, how["threads_per_rank"], because, how["ranks"], unit)


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
def compete() -> Iterator[list[int]]:
    """Let a process compute on each processor meanwhile; yield their ids."""
    places: list[int | None] = [None] * usable_processors()
    if hasattr(os, "sched_getaffinity"):
        places = list(os.sched_getaffinity(0))
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=_compute, args=(one, os.getpid()), daemon=True) for one in places
    ]
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
