"""Train for a turn, with real data or with one batch that stays in memory."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cepheid.benchmarks.registry import import_task
from cepheid.measure.engine.turns import time_steps
from cepheid.measure.studies.scaling.points import STRONG
from cepheid.reference.run.old_keys import replace_old_keys
from cepheid.reference.session.frameworks import find_create
from cepheid.rules import definition as definitions

if TYPE_CHECKING:
    from cepheid.reference.run.config import RunConfig
    from cepheid.reference.run.execution import Execution
    from cepheid.reference.torch.ranks.distributed import TorchRanks

BATCH_SIZE = "global_batch_size"
SHARING = ("pipeline", "tensor_ranks")  # settings with which ranks share a model
PARTITIONS = "spatial_partitions"
LEAD_IN_STEPS = 3  # of each turn are not timed: the loader has that many batches ready
PROFILED_STEPS = 6


@dataclass(frozen=True)
class Job:
    """One number of ranks to measure, with all that their processes need to know.

    ``batch_size`` is that of each rank, or with ``mode`` strong that of all ranks together. Each
    rank keeps to ``processors_per_rank`` processors of its own, also while it trains alone, so that
    the threads that read its data do not use those of the others; with 0 the launcher decides.
    """

    benchmark: str
    scale: str
    ranks: int
    mode: str
    inputs: tuple[str, ...]
    batch_size: int
    overrides: tuple[str, ...]
    data_root: Path
    rounds: int
    turn_seconds: float
    processors_per_rank: int = 0

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.ranks

    @property
    def label(self) -> str:
        """The number of ranks in words."""
        return f"{self.ranks} rank{'s' if self.ranks > 1 else ''}"

    @property
    def global_batch_size(self) -> int:
        """The samples of a step of all ranks together."""
        return self.batch_size if self.mode == STRONG else self.batch_size * self.ranks

    def configure(self, execution: "Execution | None" = None) -> "RunConfig":
        """Return the configuration of all ranks together.

        ``execution`` has what was chosen for one rank; the settings that the definition adds, such
        as how images are partitioned, stay those of the ranks. Ranks that share a model compute
        eagerly, in micro-batches of their own. Raises UserError for wrong settings.
        """
        config = self._configure(self.global_batch_size, self.overrides)
        if execution is None:
            return config
        asked = config.execution
        execution = replace(execution, own=asked.own)
        if any(asked.own.get(setting, "1") != "1" for setting in SHARING):
            execution = replace(execution, compile=asked.compile, micro_batch=asked.micro_batch)
        return replace(config, execution=execution)

    def configure_alone(self, execution: "Execution | None" = None) -> "RunConfig":
        """Return the configuration of a rank by itself, which shares images and model with none."""
        shared = tuple(f"{setting}=" for setting in (PARTITIONS, *SHARING))
        current, _ = replace_old_keys(self.overrides)
        overrides = [each for each in current if not each.startswith(shared)]
        config = self._configure(self.batch_size, overrides)
        return replace(config, execution=execution) if execution else config

    def _configure(self, batch_size: int, overrides: Sequence[str]) -> "RunConfig":
        from cepheid.reference.run.config import configure

        return configure(
            definitions.load(self.benchmark, self.scale),
            division="open",
            overrides=[*overrides, f"{BATCH_SIZE}={batch_size}"],
            data_root=self.data_root,
            seed=1,
        )


def make_task(job: Job, config: "RunConfig", ranks: "TorchRanks") -> Any:
    """Return a task that is ready to train."""
    task = find_create(import_task(config.definition, "torch"))(config, ranks)
    task.build()
    task.warm_up()
    if "real" in job.inputs or hasattr(task, "next_share"):
        task.open_data()
    task.model.train()
    return task


@contextmanager
def feed(task: Any, kind: str) -> Iterator[None]:
    """Let the steps within the block read real data, or use one batch that stays in memory.

    A task that reads whole shares in passes (``next_share``) repeats the first one of its data.
    """
    if kind == "real":
        yield
        return
    name = "next_share" if hasattr(task, "next_share") else "next_pieces"
    batch = task.next_share() if name == "next_share" else _draw_pieces(task)
    samples = task.samples
    setattr(task, name, lambda: batch)
    try:
        yield
    finally:
        delattr(task, name)
        task.samples = samples  # so that the loader goes on where it was


def _draw_pieces(task: Any) -> Sequence[Any]:
    """Return a rank's share of a step as pieces of noise."""
    from cepheid.reference.torch.pieces import cut

    inputs, targets = task.draw_noise(task.batch_per_rank)
    return cut(inputs, targets, task.piece_size)


def time_turn(task: Any, kind: str, steps: int) -> float:
    """Return the mean seconds of a step of a turn, with a kind of input."""
    with feed(task, kind):
        time_steps(task, LEAD_IN_STEPS)
        return time_steps(task, steps)


def profile_turn(task: Any, kind: str) -> Mapping[str, float]:
    """Return the mean milliseconds of each phase of some steps."""
    from cepheid.measure.engine.step_profiler import profile_steps

    with feed(task, kind):
        time_steps(task, LEAD_IN_STEPS)
        return profile_steps(task, PROFILED_STEPS).phases_ms
