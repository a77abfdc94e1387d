"""Measure one number of ranks: the part of ``cepheid measure scaling`` that runs on every rank."""

import math
import os
import statistics
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from cepheid.measure.engine.turns import time_in_turns, time_once
from cepheid.measure.studies.scaling.companion import Companion
from cepheid.measure.studies.scaling.points import (
    ALONE,
    INDEPENDENT,
    TOGETHER,
    Job,
    LinkTimes,
    Point,
    name_arm,
)
from cepheid.measure.studies.scaling.steps import feed, make_scaled_task, profile_turn, time_turn
from cepheid.reference.machine.placement import find_placement
from cepheid.rules.errors import UserError

if TYPE_CHECKING:
    from cepheid.reference.run.execution import Execution
    from cepheid.reference.torch.ranks.distributed import TorchRanks

FEWEST_STEPS, MOST_STEPS = 2, 200
SUMS = ("allreduce", "reduce_scatter", "_reduce_scatter_base")
COLLECTIVES = {f"c10d::{name}_" for name in (*SUMS, "allgather", "_allgather_base", "broadcast")}
SMALL_BYTES, LARGE_BYTES, REPEATS = 4096, 8 * 2**20, 15  # of the all-reduces that are timed alone


def measure_ranks(
    job: Job, prepare: "Callable[[TorchRanks], object]" = lambda ranks: None
) -> Point:
    """Measure with the ranks that a launcher set up; the first one's point counts.

    ``prepare`` is called on the first rank before the others need data.
    The first rank chooses the execution settings, alone, so that all compute alike. Raises
    UserError where the ranks cannot train so.
    """
    load = os.getloadavg()[0]
    if job.processors_per_rank:
        keep_to_processors(job.processors_per_rank)
    alone = Companion()
    try:
        from cepheid.reference.torch.ranks.distributed import start_ranks

        with start_ranks() as ranks:
            if ranks.is_first:
                prepare(ranks)
            ranks.barrier()
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
    config = job.configure(execution)
    together = make_scaled_task(job, config, ranks)
    seconds = _time_arms(job, alone, together, ranks)
    kind = job.inputs[0]
    phases = ranks.all_gather_object(profile_turn(together, kind))
    alone_phases = ranks.broadcast(alone.profile_turn(kind) if ranks.is_first else None)
    return Point(
        ranks=ranks.world_size,
        batch_size=config.global_batch_size,
        alone_batch_size=job.batch_size,
        seconds=seconds,
        phases_ms={
            phase: statistics.mean(each.get(phase, 0.0) for each in phases) for phase in phases[0]
        },
        alone_phases_ms=alone_phases,
        gradient_bytes=sum(4 * weights.numel() for weights in together.model.parameters()),
        link=_time_link(together, ranks) if ranks.world_size > 1 else None,
        implementation=dict(together.implementation()),
        load_before=load,
    )


def _time_arms(
    job: Job, alone: Companion, together: Any, ranks: "TorchRanks"
) -> dict[str, tuple[float, ...]]:
    """Return the seconds of a step of each arm, turn by turn, as the first rank has them."""

    def time_alone(kind: str) -> float:
        seconds = alone.time_turn(kind, steps) if ranks.is_first else 0.0
        ranks.barrier()
        return seconds

    def time_independent(kind: str) -> float:
        ranks.barrier()
        of_ranks: list[float] = ranks.all_gather_object(alone.time_turn(kind, steps))
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


def _time_link(task: Any, ranks: "TorchRanks") -> LinkTimes:
    """Time a small and a large all-reduce, and count those of a step."""
    import torch

    from cepheid.reference.torch.ranks.collectives import all_reduce

    medians = []
    for size in (SMALL_BYTES, LARGE_BYTES):
        values = torch.zeros(size // 4, device=ranks.device)

        def sum_values(values: torch.Tensor = values) -> None:
            all_reduce(values)
            if ranks.device.type == "cuda":
                torch.cuda.synchronize(ranks.device)

        times = []
        for _ in range(REPEATS):
            ranks.barrier()
            times.append(time_once(sum_values))
        medians.append(statistics.median(times))
    small, large = medians
    if ranks.is_first and large <= small:  # its point counts
        raise UserError(
            f"the link between the ranks could not be timed: {LARGE_BYTES:,} bytes took no longer "
            f"than {SMALL_BYTES:,}; fix: measure again when less other work is running"
        )
    return LinkTimes(SMALL_BYTES, small, LARGE_BYTES, large, _count_collectives(task))


def _count_collectives(task: Any) -> int:
    """Return how many collectives a step starts, as if each rank had a machine of its own.

    torch's ``CommDebugMode`` counts them too, but its hooks forbid networks that work in place.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    from cepheid.reference.torch.ranks.shared_memory import send_messages

    class Counter(TorchDispatchMode):
        count: int = 0

        def __torch_dispatch__(
            self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.count += str(operation.name()) in COLLECTIVES
            return operation(*args, **(kwargs or {}))

    with feed(task, "synthetic"), send_messages(), Counter() as counter:
        task.step()
    return int(counter.count)
