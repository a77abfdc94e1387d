"""Train beside other work: what of a fair share of the processors is lost.

A competing process computes on each processor all the time, so half of them is a fair share. The
process that trains is new in each case, because it chooses its threads by the load that it finds.
"""

import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reference.measure.own_process import run_alone
from rules import definition as definitions
from rules.host import usable_processors

SECONDS, STEPS_MIN = 15.0, 3
FAIR_SHARE = 0.5
STEPS_OF_COMPETITOR = 100_000  # some milliseconds


@dataclass(frozen=True)
class Training:
    """How fast a process trained, on how many threads, and why on so many."""

    samples_per_second: float
    threads: int
    because: str

    def __str__(self) -> str:
        """Return ``150 samples/s on 2 threads``."""
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{self.samples_per_second:,.4g} samples/s on {threads}"


@dataclass(frozen=True)
class BesideWork:
    """Training alone and beside competitors."""

    alone: Training
    beside: Training

    @property
    def lost(self) -> float:
        """The time of a sample beside other work over that of a fair share; 1 loses nothing."""
        return FAIR_SHARE * self.alone.samples_per_second / self.beside.samples_per_second

    def as_json(self) -> dict[str, Any]:
        """Return both and what is lost."""
        return {**asdict(self), "times_of_a_fair_share": self.lost}


def compare_with_fair_share(
    name: str, scale: str, overrides: Sequence[str], data_root: Path, seconds: float = SECONDS
) -> BesideWork:
    """Train for some seconds alone, then beside a competitor on each processor."""
    request = name, scale, tuple(overrides), data_root, seconds
    alone = run_alone(train_for, *request)
    with compete():
        return BesideWork(alone, run_alone(train_for, *request))


def train_for(
    name: str, scale: str, overrides: Sequence[str], data_root: Path, seconds: float
) -> Training:
    """Make a task ready under the present load, and train in this process."""
    from reference.measure.speed import make_ready_task, pick_create
    from reference.run.config import configure
    from reference.session.frameworks import import_task
    from reference.torch.distributed import start_ranks

    definition = definitions.load(name, scale)
    config = configure(definition, overrides=overrides, data_root=data_root, seed=1)
    with start_ranks() as ranks:
        task = make_ready_task(pick_create(import_task(definition, "torch")), config, ranks)
        task.model.train()
        task.step()
        task.synchronize()
        first, steps, began = task.samples, 0, time.monotonic()
        while steps < STEPS_MIN or time.monotonic() - began < seconds:
            task.step()
            task.synchronize()
            steps += 1
        pace = (task.samples - first) / (time.monotonic() - began)
        how = task.implementation()
        because = how["execution"]["because"].get("threads", "")
        return Training(pace, how["threads_per_rank"], because)


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
