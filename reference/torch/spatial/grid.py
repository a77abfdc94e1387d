"""The grid of ranks that share the images of one replica, and how an axis is split over it."""

from dataclasses import dataclass
from typing import Any

from cepheid.reference.run.execution import Grid
from cepheid.reference.torch.ranks.distributed import TorchRanks


@dataclass(frozen=True)
class Axis:
    """One axis of the maps of a replica, (n, channels, height, width), as this rank sees it.

    The ``peers`` are the ranks of the parts along the axis, by their number in the whole run, and
    this rank has part ``place``.
    """

    dim: int
    peers: tuple[int, ...]
    place: int
    group: Any

    @property
    def parts(self) -> int:
        """The number of parts along the axis."""
        return len(self.peers)


class Partition:
    """This rank's place in a grid. While ``is_active``, layers compute on this rank's part."""

    def __init__(self, grid: Grid, ranks: TorchRanks) -> None:
        """Make the process group of the replica. All ranks must call it."""
        self.grid, self.is_active = grid, False
        self.group = ranks.make_subgroup(grid.parts)
        self.place = ranks.rank % grid.parts
        row, column = divmod(self.place, grid.columns)
        first = ranks.rank - self.place
        of_column = tuple(first + other * grid.columns + column for other in range(grid.rows))
        of_row = tuple(first + row * grid.columns + other for other in range(grid.columns))
        self.axes = (Axis(2, of_column, row, self.group), Axis(3, of_row, column, self.group))

    def compute_shares(self, height: int, width: int) -> tuple[float, ...]:
        """Return the weight of each rank's mean over its part in the mean over a map."""
        rows, columns = (
            [len(part) / sum(map(len, parts)) for part in parts]
            for parts in (split(height, self.grid.rows), split(width, self.grid.columns))
        )
        return tuple(row * column for row in rows for column in columns)

    def count_copies(self, height: int, width: int) -> int:
        """Return the number of ranks that hold each value of a map."""
        in_rows = self.grid.rows if height < self.grid.rows else 1
        in_columns = self.grid.columns if width < self.grid.columns else 1
        return in_rows * in_columns


def split(size: int, parts: int) -> tuple[range, ...]:
    """Return the indices of each part of an axis of ``size``.

    All parts but the last ones are equal: 38 is split into 10, 10, 10, 8. If that leaves a part
    empty, no two parts differ by more than 1. An axis shorter than the number of parts is not
    split, and each part is the whole axis.
    """
    if size < parts:
        return (range(size),) * parts
    most = -(-size // parts)
    if most * (parts - 1) < size:
        return tuple(range(most * i, min(most * (i + 1), size)) for i in range(parts))
    return tuple(range(size * i // parts, size * (i + 1) // parts) for i in range(parts))
