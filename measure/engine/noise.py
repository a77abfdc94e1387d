"""Noise of the real shapes in place of a dataset, so that any task takes steps without one.

Every step gets the same samples. They lie where read ones do, so that a step copies them to the
device as a step of a run does; what is missing is reading.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cepheid.reference.torch.pieces import Piece

REAL, SYNTHETIC, NO_DATA = "real", "synthetic", ""
INPUTS = (REAL, SYNTHETIC)


class Noise:
    """The pieces of a step of a task, one piece of noise as often as it takes."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self._key: tuple[int, object] | None = None
        self._pieces: Sequence[Piece] = ()

    def take(self, samples: int, size: int) -> "Sequence[Piece]":
        """Return this rank's share of any step in pieces of ``size`` samples.

        Where passes are limited by something else, such as tokens, that decides.
        """
        key = size, self._task.execution
        if key != self._key:
            self._pieces, self._key = draw_step(self._task, size), key
        return self._pieces


def draw_step(task: Any, size: int) -> "Sequence[Piece]":
    """Return a rank's share of a step as pieces of noise; equal ones are the same tensors."""
    from cepheid.reference.torch.pieces import Piece

    share: int = task.batch_per_rank
    drawn = task.piece_rule.draw_noise(task.execution, min(size, share))
    inputs, targets = map(task.device.pin, drawn)
    count, rest = divmod(share, len(inputs))
    pieces = [Piece(inputs, targets, len(inputs) / share)] * count
    return [*pieces, Piece(inputs[:rest], targets[:rest], rest / share)] if rest else pieces


def open_noise(task: Any) -> None:
    """Let the steps of a task take noise where those of a run read the dataset."""
    task.data = task.ahead = Noise(task)


def leave_out_files(task: Any) -> None:
    """Let the warm-up begin with the weights of the seed, and predict nothing.

    Given weights are a file as large as some datasets, and nothing is evaluated on noise, where
    translations of the longest sentences take minutes.
    """
    task.workload = replace(task.workload, load_given=None)
    task.predict_noise = lambda: None


def hold_weights(task: Any) -> None:
    """Let updates compute all that they compute, at a rate of 0.

    What learns from noise for a while diverges, and then computes something else, or nothing.
    """
    prepare = task.workload.prepare_update

    def prepare_and_hold(shape: Any, update: Any) -> None:
        prepare(shape, update)
        for group in update.groups:
            group["lr"] = 0.0

    task.workload = replace(task.workload, prepare_update=prepare_and_hold)


def place_at_largest_step(task: Any) -> None:
    """Let the next step be at that place of the training where a step needs the most."""
    task.samples = max(task.workload.noise_samples(task.shape))


@contextmanager
def feed(task: Any, kind: str) -> Iterator[None]:
    """Let the steps within the block read real data, or use one batch that stays in memory."""
    if kind == REAL or getattr(task, "draws_noise", False):
        yield
        return
    # Passes of read sentences differ in length from those of noise.
    varies = task.workload.passes is not None
    batch = task.next_pieces() if varies else draw_step(task, task.piece_size)
    samples = task.samples
    task.next_pieces = lambda: batch
    try:
        yield
    finally:
        del task.next_pieces
        task.samples = samples  # so that the loader goes on where it was
