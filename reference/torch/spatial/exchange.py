"""The grid of ranks that share the images of a replica, and what they exchange of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from cepheid.reference.run.execution import Grid
from cepheid.reference.torch.ranks.collectives import all_reduce, detect_lost_rank
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

    def add_up(self, values: Tensor) -> Tensor:
        """Return the sum of ``values``, of any shape, over the ranks of the replica."""
        return all_reduce(values, self.group)

    def count_copies(self, height: int, width: int) -> int:
        """Return the number of ranks that hold each value of a map."""
        in_rows = self.grid.rows if height < self.grid.rows else 1
        in_columns = self.grid.columns if width < self.grid.columns else 1
        return in_rows * in_columns


def measure_part(grid: Grid, place: int, size: Sequence[int]) -> tuple[int, int]:
    """Return the size of a rank's part of a map of ``size``, (height, width) both."""
    row, column = divmod(place, grid.columns)
    rows, columns = split(size[0], grid.rows)[row], split(size[1], grid.columns)[column]
    return len(rows), len(columns)


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


@dataclass(frozen=True)
class Exchange:
    """What each part of an axis holds of a map, and what it needs of it.

    ``held`` and ``needed`` are indices of the whole map, of ``size`` along the axis. Indices that
    are needed outside of it are padding. A map that is not split is held by all parts as a whole.
    """

    axis: Axis
    size: int
    held: tuple[range, ...]
    needed: tuple[range, ...]

    def collect(self, images: Tensor, fill: float) -> Tensor:
        """Return the part of the map that this rank needs, from the part that it holds.

        Both are (n, channels, height, width). Padding has the value ``fill``. The gradient of what
        came from other ranks is sent back to them, and they add it to their own.
        """
        return _Collect.apply(images, self, fill)

    def receive(self, images: Tensor, fill: float) -> Tensor:
        """Collect what is needed, (n, channels, height, width), without gradients."""
        dim, me = self.axis.dim, self.axis.place
        outgoing = {part: self._cut(images, me, self._find(me, part)) for part in self._others()}
        incoming = {part: self._find(part, me) for part in self._others()}
        rows = _swap(self.axis, outgoing, {k: len(v) for k, v in incoming.items()}, images)
        rows[me] = self._cut(images, me, self._find(me, me))
        start, stop = self.needed[me].start, self.needed[me].stop
        before, after = max(0, min(stop, 0) - start), max(0, stop - max(start, self.size))
        pieces = [_pad_like(images, dim, before, fill), *(rows[part] for part in sorted(rows))]
        pieces.append(_pad_like(images, dim, after, fill))
        return torch.cat([piece for piece in pieces if piece.shape[dim]], dim)

    def send_back(self, gradient: Tensor) -> Tensor:
        """Return the gradient of the part that this rank holds, from that of what it collected.

        Both are (n, channels, height, width).
        """
        dim, me = self.axis.dim, self.axis.place
        needed, held = self.needed[me], self.held[me]
        outgoing = {
            part: gradient.narrow(dim, wanted.start - needed.start, len(wanted))
            for part in self._others()
            for wanted in [self._find(part, me)]
            if wanted
        }
        returning = {part: self._find(me, part) for part in self._others()}
        rows = _swap(self.axis, outgoing, {k: len(v) for k, v in returning.items()}, gradient)
        own = self._find(me, me)
        pieces = [
            _pad_like(gradient, dim, own.start - held.start, 0.0),
            gradient.narrow(dim, own.start - needed.start, len(own)) if own else gradient[:0],
            _pad_like(gradient, dim, held.stop - own.stop, 0.0),
        ]
        total = torch.cat([piece for piece in pieces if piece.numel()], dim)
        for part in sorted(rows):
            wanted = returning[part]
            total.narrow(dim, wanted.start - held.start, len(wanted)).add_(rows[part])
        return total

    def _others(self) -> list[int]:
        return [part for part in range(self.axis.parts) if part != self.axis.place]

    def _find(self, holder: int, part: int) -> range:
        """Return what ``part`` takes from ``holder``: of a map that is not split, all from itself.

        The range is empty if it takes nothing.
        """
        held, needed = self.held[holder], self.needed[part]
        start, stop = max(held.start, needed.start), min(held.stop, needed.stop)
        is_split = self.size >= self.axis.parts
        if start < stop and (holder == part or is_split):
            return range(start, stop)
        return range(held.start, held.start)

    def _cut(self, images: Tensor, holder: int, wanted: range) -> Tensor:
        start = wanted.start - self.held[holder].start
        return images.narrow(self.axis.dim, start, len(wanted))


class _Collect(torch.autograd.Function):
    """``Exchange.collect`` with its gradient."""

    @staticmethod
    def forward(context: Any, images: Tensor, exchange: Exchange, fill: float) -> Tensor:
        context.exchange = exchange
        return exchange.receive(images, fill)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return context.exchange.send_back(gradient), None, None


def _swap(
    axis: Axis, outgoing: Mapping[int, Tensor], incoming: Mapping[int, int], like: Tensor
) -> dict[int, Tensor]:
    """Send each part its tensor; return the ``incoming`` number of rows from each part.

    All are shaped as ``like``, but along the axis. Sends and receives are started together, so that
    no rank waits for another one to receive first. Channels are last in a message, whatever the
    memory format on either side.
    """
    operations, received = [], {}
    for part, values in outgoing.items():
        if values.numel():
            message = values.detach().movedim(1, -1).contiguous()
            operations.append(dist.P2POp(dist.isend, message, axis.peers[part], axis.group))
    for part, count in incoming.items():
        if count:
            shape = list(like.shape)
            shape[axis.dim] = count
            message = like.new_empty([shape[0], *shape[2:], shape[1]])
            operations.append(dist.P2POp(dist.irecv, message, axis.peers[part], axis.group))
            received[part] = message.movedim(-1, 1)
    if operations:
        with detect_lost_rank():  # ``operations`` keeps the messages alive until they have arrived
            for work in dist.batch_isend_irecv(operations):
                work.wait()
    return received


def _pad_like(images: Tensor, dim: int, count: int, fill: float) -> Tensor:
    """Return ``count`` rows of ``fill``, shaped as ``images`` but along ``dim``, channels last."""
    shape = list(images.shape)
    shape[dim] = count
    return images.new_full([shape[0], *shape[2:], shape[1]], fill).movedim(-1, 1)
