"""One factor of a layer: what is collected, its average, its inverse and when it is due."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from cepheid.second_order import symmetric
from cepheid.second_order.inverse import Factored
from cepheid.second_order.staleness import Interval


@dataclass(eq=False)
class Statistic:
    """One factor: a symmetric matrix, (size, size), or ``rows`` numbers of each of ``size`` units.

    The unit-wise Fisher of a batch normalisation has three, a diagonal matrix one.

    ``collected`` is this rank's sum over the samples since the last step. On ranks that invert it,
    ``average`` is the running average, ``before`` are the two that it replaced, newest first.
    """

    name: str
    size: int
    is_matrix: bool
    of_inputs: bool
    collected: Tensor | None = None
    average: Tensor | None = None
    before: list[Tensor] = field(default_factory=list)
    factored: Factored | None = None
    interval: Interval = field(default_factory=Interval)
    non_finite: int = 0  # batches in a row that were left out
    rows: int = 3

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the factor."""
        return (self.size if self.is_matrix else self.rows, self.size)

    def pack(self, values: Tensor, triangle: bool) -> Tensor:
        """Return the factor as a flat float32 tensor, for sending.

        ``triangle`` keeps only the upper triangle of a matrix.
        """
        return symmetric.pack(values) if self.is_matrix and triangle else values.flatten()

    def count_packed(self, triangle: bool) -> int:
        """Return how many numbers are sent."""
        rows, columns = self.shape
        return symmetric.count_packed(columns) if self.is_matrix and triangle else rows * columns

    def unpack(self, flat: Tensor, triangle: bool) -> Tensor:
        """Return the packed matrix in its own shape."""
        if self.is_matrix and triangle:
            return symmetric.unpack(flat, self.size)
        return flat.view(self.shape)

    def dump_state(self) -> list[Tensor]:
        """Return the part of a saved state: the damping of the inverse, the average, earlier ones.

        The damping is NaN without an inverse. The result is empty if the factor is not known yet.
        """
        if self.average is None:
            return []
        nan = torch.full((), float("nan"), device=self.average.device)
        damping = nan if self.factored is None else self.factored.damping
        return [damping, self.average, *self.before]

    def allocate_state(self, count: int, device: torch.device) -> list[Tensor]:
        """Return empty tensors of the ``count`` shapes that ``dump_state`` of another rank has."""
        shapes = [(), *[self.shape] * (count - 1)] if count else []
        return [torch.empty(shape, device=device) for shape in shapes]

    def forget(self) -> None:
        """Forget everything about the factor, as before the first batch."""
        self.collected = self.average = self.factored = None
        self.before, self.non_finite = [], 0

    def collect(self, values: Tensor) -> None:
        """Add the sum over some samples."""
        self.collected = values if self.collected is None else self.collected + values
