"""Default boxes and anchors: where a detector on several maps looks for objects, of which sizes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Level:
    """One map of ``cells`` × ``cells`` places, ``step`` pixels apart.

    Each place has a square of ``size`` pixels, one of the geometric mean of ``size`` and that of
    the next level, and for each ratio r two boxes of the area of the first, wider and higher by r.
    """

    cells: int
    step: float
    size: float
    next_size: float
    ratios: tuple[float, ...]

    @classmethod
    def list_levels(cls, facts: Mapping[str, Any], cells: Sequence[int]) -> tuple[Self, ...]:
        """Return the levels of a definition, for maps of ``cells``.

        Its ``sizes`` are one more than there are maps.
        """
        sizes = facts["sizes"]
        columns = cells, facts["steps"], sizes[:-1], sizes[1:], facts["ratios"]
        return tuple(
            cls(cells, step, size, next_size, tuple(ratios))
            for cells, step, size, next_size, ratios in zip(*columns, strict=True)
        )

    @property
    def per_place(self) -> int:
        """The number of boxes at each place."""
        return 2 + 2 * len(self.ratios)

    def list_shapes(self) -> Iterator[tuple[float, float]]:
        """Yield width and height of the boxes of a place, in pixels."""
        yield self.size, self.size
        between = math.sqrt(self.size * self.next_size)
        yield between, between
        for ratio in self.ratios:
            longer, shorter = self.size * math.sqrt(ratio), self.size / math.sqrt(ratio)
            yield longer, shorter
            yield shorter, longer


def make_default_boxes(pixels: int, levels: Sequence[Level]) -> Tensor:
    """Return centres (k, 4), as parts of the sides of an image of ``pixels`` × ``pixels``.

    They come level by level, by rows, by columns, and by shapes. Each of the four numbers is cut
    off at 0 and 1, as in the MLPerf reference, which does not cut off corners.
    """
    parts = []
    for level in levels:
        shapes = torch.tensor(list(level.list_shapes()), dtype=torch.float64) / pixels
        middle = (torch.arange(level.cells, dtype=torch.float64) + 0.5) * level.step / pixels
        parts.append(lay_out(shapes, middle, middle))
    return torch.cat(parts).clamp(0, 1).float()


@dataclass(frozen=True)
class AnchorLevel:
    """One map of ``rows`` × ``columns`` places, ``step`` pixels apart.

    The anchors of a place have the area of a square of ``size`` pixels, one for each of ``ratios``,
    height over width.
    """

    rows: int
    columns: int
    step: int
    size: float
    ratios: tuple[float, ...]

    @property
    def count(self) -> int:
        """The number of anchors of the map."""
        return self.rows * self.columns * len(self.ratios)

    def list_shapes(self) -> Iterator[tuple[float, float]]:
        """Yield width and height of the anchors of a place, in pixels."""
        for ratio in self.ratios:
            yield self.size / math.sqrt(ratio), self.size * math.sqrt(ratio)


def make_anchors(levels: Sequence[AnchorLevel]) -> Tensor:
    """Return the anchors of all levels, centres (k, 4) in pixels.

    They come level by level, by rows, by columns, and by ratios.
    """
    parts = []
    for level in levels:
        shapes = torch.tensor(list(level.list_shapes()), dtype=torch.float64)
        down = (torch.arange(level.rows, dtype=torch.float64) + 0.5) * level.step
        across = (torch.arange(level.columns, dtype=torch.float64) + 0.5) * level.step
        parts.append(lay_out(shapes, down, across))
    return torch.cat(parts).float()


def lay_out(shapes: Tensor, down: Tensor, across: Tensor) -> Tensor:
    """Return boxes of all ``shapes``, (s, 2), at each place: centres (rows × columns × s, 4).

    ``down`` (rows,) and ``across`` (columns,) are the centres of the rows and columns.
    """
    y, x = torch.meshgrid(down, across, indexing="ij")
    centres = torch.stack((x, y), dim=-1)[:, :, None].expand(-1, -1, len(shapes), -1)
    sizes = shapes.expand(len(down), len(across), -1, -1)
    return torch.cat((centres, sizes), dim=-1).reshape(-1, 4)
