"""Measure one number of ranks: the part of `cepheid measure scaling` that runs on every rank.

Beside each rank a process trains alone. It belongs to no process group: several parts of a network
ask ``torch.distributed`` whether there are other ranks.
"""

import math
import multiprocessing
import os
import signal
import statistics
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from cepheid.measure.engine.noise import NO_DATA, feed
from cepheid.measure.engine.own_process import KILLED
from cepheid.measure.engine.phases import profile_steps
from cepheid.measure.engine.turns import make_task, time_in_turns, time_steps
from cepheid.measure.studies.scaling.points import (
    ALONE,
    INDEPENDENT,
    TOGETHER,
    Job,
    Point,
    name_arm,
)
from cepheid.reference.machine.placement import find_placement
from cepheid.reference.machine.use import measure_load
from cepheid.rules.errors import UserError

if TYPE_CHECKING:
    from cepheid.reference.run.config import RunConfig
    from cepheid.reference.run.execution import Execution
    from cepheid.reference.torch.ranks.distributed import TorchRanks

LEAD_IN_STEPS = 3  # of each turn are not timed: the loader has that many batches ready
PROFILED_STEPS = 6


class Repetitions:
    """A task that generates, as one that takes steps: each makes the images of a repetition."""

    draws_noise = True  # itself: nothing is fed

    def __init__(self, task: Any) -> None:
        self.task, self.model, self.phase = task, task.maker.model, nullcontext
        self.execution, self.implementation = task.maker.execution, task.implementation
        self.synchronize = self.finish_phase = task.synchronize
        (self.images,) = task.definition.generation.counts
        self.done = 0

    def step(self) -> None:
        """Make the images of the next repetition."""
        with self.phase("sampling"):
            latents = self.task.sample(self.images, self.done)
        with self.phase("decoding"):
            self.task.decode(latents)
        self.done += 1


def make_scaled_task(job: Job, config: "RunConfig", ranks: "TorchRanks") -> Any:
    """Return a task that is ready to take steps."""
    if config.definition.generation:
        return Repetitions(make_task(config, ranks, inputs=NO_DATA))
    task = make_task(config, ranks, inputs=job.inputs[0])
    task.model.train()
    return task


def time_turn(task: Any, kind: str, steps: int) -> float:
    """Return the mean seconds of a step of a turn, with a kind of input."""
    with feed(task, kind):
        time_steps(task, LEAD_IN_STEPS)
        return time_steps(task, steps)


def profile_turn(task: Any, kind: str) -> Mapping[str, float]:
    """Return the mean milliseconds of each phase of some steps."""
    with feed(task, kind):
        time_steps(task, LEAD_IN_STEPS)
        return profile_steps(task, PROFILED_STEPS).phases_ms


SECONDS_TO_END = 10.0


class Companion:
    """A process with a task of one rank, which takes turns where it is asked to."""

    def __init__(self) -> None:
        """Fork it, before this rank has threads or uses a device."""
        context = multiprocessing.get_context("fork")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._ours))
        self._process.start()
        theirs.close()

    def make_task(self, job: Job, device: str, execution: "Execution | None" = None) -> "Execution":
        """Let it make its task on ``device``; return the execution settings in use.

        They are chosen there unless they are given. Raises UserError where the task cannot train.
        """
        return self._ask(job, device, execution)

    def call(self, turn: Callable[..., Any], *arguments: Any) -> Any:
        """Return what ``turn`` returns there, which gets the task and the arguments."""
        return self._ask(turn, *arguments)

    def close(self) -> None:
        """End the process, which waits for a question or for the end of the connection."""
        self._ours.close()
        self._process.join(SECONDS_TO_END)
        self._process.kill()

    def _ask(self, *question: Any) -> Any:
        try:
            self._ours.send(question)
            answer = self._ours.recv()
        except (EOFError, BrokenPipeError) as error:
            raise UserError(KILLED) from error
        if isinstance(answer, UserError):
            raise answer
        return answer


def _serve(questions: Connection, other_end: Connection) -> None:
    """Make the task and answer until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    other_end.close()  # this process must not keep it open
    with suppress(EOFError):
        job, device, execution = questions.recv()
        try:
            task = _make_task_alone(job, device, execution)
        except UserError as error:  # its subclasses cannot all be sent to another process
            questions.send(UserError(str(error)))
            return
        questions.send(task.execution)
        while True:
            turn, *arguments = questions.recv()
            questions.send(turn(task, *arguments))


def _make_task_alone(job: Job, device: str, execution: "Execution | None") -> Any:
    import torch

    from cepheid.reference.torch.ranks.choice import choose_device
    from cepheid.reference.torch.ranks.distributed import TorchRanks

    place = choose_device(torch.device(device).index or 0).place
    return make_scaled_task(job, job.configure_alone(execution), TorchRanks(0, 1, place))


FEWEST_STEPS, MOST_STEPS = 2, 200


def measure_ranks(
    job: Job, prepare: "Callable[[TorchRanks], object]" = lambda ranks: None
) -> Point:
    """Measure with the ranks that a launcher set up; the first one's point counts.

    ``prepare`` is called on the first rank before the others need data.
    The first rank chooses the execution settings, alone, so that all compute alike. Raises
    UserError where the ranks cannot train so.
    """
    if job.processors_per_rank:
        keep_to_processors(job.processors_per_rank)
    alone = Companion()
    try:
        from cepheid.reference.torch.ranks.distributed import start_ranks

        with start_ranks() as ranks:
            if ranks.is_first:
                prepare(ranks)
            ranks.barrier()
            load = measure_load()
            device = str(ranks.device)
            chosen = alone.make_task(job, device) if ranks.is_first else None
            execution: Execution = ranks.broadcast(chosen)
            if not ranks.is_first:
                alone.make_task(job, device, execution)
            return _measure(job, alone, execution, ranks, load)
    finally:
        alone.close()


def keep_to_processors(count: int) -> None:
    """Keep this rank, and the process beside it, to ``count`` processors that no other rank has."""
    if hasattr(os, "sched_setaffinity"):  # Linux
        first = (find_placement().local_rank or 0) * count
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[first : first + count])


def _measure(
    job: Job, alone: Companion, execution: "Execution", ranks: "TorchRanks", load: float
) -> Point:
    together = make_scaled_task(job, job.configure(execution), ranks)
    seconds = _time_arms(job, alone, together, ranks)
    kind = job.inputs[0]
    phases = ranks.all_gather_object(profile_turn(together, kind))
    return Point(
        ranks=ranks.world_size,
        batch_size=job.global_batch_size,
        alone_batch_size=job.batch_size,
        seconds=seconds,
        phases_ms={
            phase: statistics.mean(each.get(phase, 0.0) for each in phases) for phase in phases[0]
        },
        implementation=dict(together.implementation()),
        load_before=load,
    )


def _time_arms(
    job: Job, alone: Companion, together: Any, ranks: "TorchRanks"
) -> dict[str, tuple[float, ...]]:
    """Return the seconds of a step of each arm, turn by turn, as the first rank has them."""

    def time_alone(kind: str) -> float:
        seconds: float = alone.call(time_turn, kind, steps) if ranks.is_first else 0.0
        ranks.barrier()
        return seconds

    def time_independent(kind: str) -> float:
        ranks.barrier()
        of_ranks: list[float] = ranks.all_gather_object(alone.call(time_turn, kind, steps))
        return statistics.mean(of_ranks)

    first_seconds = time_turn(together, job.inputs[0], FEWEST_STEPS)
    steps: int = ranks.broadcast(
        min(MOST_STEPS, max(FEWEST_STEPS, math.ceil(job.turn_seconds / first_seconds)))
    )
    arms: dict[str, Callable[[], float]] = {}
    for kind in job.inputs:
        arms[name_arm(ALONE, kind)] = partial(time_alone, kind)
        if ranks.world_size > 1:
            arms[name_arm(TOGETHER, kind)] = partial(time_turn, together, kind, steps)
    if ranks.world_size > 1:
        arms[name_arm(INDEPENDENT, job.inputs[-1])] = partial(time_independent, job.inputs[-1])
    seconds = {timing.label: timing.seconds for timing in time_in_turns(job.rounds, arms)}
    if ranks.world_size == 1:  # one rank together is one alone
        seconds |= {name_arm(TOGETHER, kind): seconds[name_arm(ALONE, kind)] for kind in job.inputs}
    return seconds
