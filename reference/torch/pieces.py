"""The pieces in which a rank takes its share of a global batch; ``warm_up`` says how large.

This module imports nothing of ours, so that a benchmark can make pieces without a trainer.
"""

from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class Piece:
    """Inputs and targets of one forward and backward pass, (n, …) both.

    ``weight`` multiplies its mean loss: the losses of a rank's pieces add up to that of its share.
    """

    inputs: Tensor
    targets: Tensor
    weight: float = 1.0


class Pieces(Sized, Iterable[Piece], Protocol):
    """The pieces of a step: how many there are, and one after the other."""


class PiecesToRead(Pieces):
    """Equal pieces, each of which is read when its turn comes.

    ``read`` returns inputs and targets of the piece with a number below ``count``, (n, …) both.
    """

    def __init__(self, count: int, read: Callable[[int], tuple[Tensor, Tensor]]) -> None:
        self._count, self._read = count, read

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Piece]:
        return (Piece(*self._read(number), 1 / self._count) for number in range(self._count))


def cut(inputs: Tensor, targets: Tensor, size: int) -> list[Piece]:
    """Return a batch, (n, …) both, in pieces of ``size`` samples; the last one may be smaller."""
    if size >= len(inputs):
        return [Piece(inputs, targets)]
    parts = zip(inputs.split(size), targets.split(size), strict=True)
    return [Piece(*part, len(part[0]) / len(inputs)) for part in parts]
