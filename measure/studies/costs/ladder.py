"""Time what makes an update of the baseline fast, step by step, all steps in turns in one run."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from cepheid.measure.engine.step_profiler import profile_steps
from cepheid.measure.engine.turns import Timing, divide, time_in_turns, time_steps
from cepheid.measure.studies.costs.costs import UPDATES, Setup
from cepheid.rules.errors import UserError

if TYPE_CHECKING:
    from cepheid.reference.torch.ranks.distributed import TorchRanks


@dataclass(frozen=True)
class MeasuredRung:
    """The time of an update, its phases on this rank, and how much faster it is than others.

    ``speedup`` is over the rung before, ``speedup_in_all`` over the first one
    (``cepheid.measure.engine.turns.divide``).
    """

    name: str
    timing: Timing
    phases_ms: Mapping[str, float]
    speedup: tuple[float, float, float]
    speedup_in_all: tuple[float, float, float]

    @property
    def milliseconds(self) -> float:
        """The median time of an update."""
        return 1000 * self.timing.median_seconds


@dataclass(frozen=True)
class MeasuredLadder:
    """All rungs that run here; ``left_out`` has the reasons why others do not."""

    rungs: tuple[MeasuredRung, ...]
    ranks: int
    global_batch_size: int
    threads: int
    left_out: Mapping[str, str] = field(default_factory=dict)

    def as_json(self, setup: Setup) -> dict[str, Any]:
        """Return everything for the JSON file."""
        return {
            "benchmark": setup.definition.name,
            "scale": setup.definition.scale,
            "definition_digest": setup.definition.digest,
            **asdict(self),
        }


def measure_ladder(setup: Setup, ranks: "TorchRanks", say: Callable[[str], None]) -> MeasuredLadder:
    """Build the task of each rung, time all of them in turns, then profile each."""
    setup = setup.choose_batch(ranks.world_size)
    tasks: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for rung in setup.costs.require_ladder().rungs:
        say(f"building: {rung.name}")
        try:
            tasks[rung.name] = setup.make_settled_task(rung, ranks)
        except UserError as error:
            left_out[rung.name] = str(error)
    say("measuring all in turns")
    timings = time_in_turns(
        setup.rounds, {name: partial(time_steps, task, UPDATES) for name, task in tasks.items()}
    )
    rungs = []
    for place, (timing, task) in enumerate(zip(timings, tasks.values(), strict=True)):
        task.use_execution(task.execution)  # threads belong to the process
        rungs.append(
            MeasuredRung(
                timing.label,
                timing,
                profile_steps(task, UPDATES).phases_ms,
                divide(timings[max(0, place - 1)], timing),
                divide(timings[0], timing),
            )
        )
    first = next(iter(tasks.values()))
    threads = int(first.implementation()["threads_per_rank"])
    batch = first.config.global_batch_size
    return MeasuredLadder(tuple(rungs), ranks.world_size, batch, threads, left_out)
