"""Train for a turn, with real data or with one batch that stays in memory."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cepheid.measure.engine.subject import make_task
from cepheid.measure.engine.turns import profile_steps, time_steps
from cepheid.measure.studies.scaling.points import Job

if TYPE_CHECKING:
    from cepheid.reference.run.config import RunConfig
    from cepheid.reference.torch.ranks.distributed import TorchRanks

LEAD_IN_STEPS = 3  # of each turn are not timed: the loader has that many batches ready
PROFILED_STEPS = 6


def make_scaled_task(job: Job, config: "RunConfig", ranks: "TorchRanks") -> Any:
    """Return a task that is ready to train."""
    task = make_task(config, ranks, has_data=False)
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
    with feed(task, kind):
        time_steps(task, LEAD_IN_STEPS)
        return profile_steps(task, PROFILED_STEPS).phases_ms
