"""Anchors: the boxes that a proposal network moves (Ren et al. 2015, arXiv:1506.01497)."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


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
        y, x = torch.meshgrid(down, across, indexing="ij")
        centres = torch.stack((x, y), dim=-1)[:, :, None].expand(-1, -1, len(shapes), -1)
        sizes = shapes.expand(level.rows, level.columns, -1, -1)
        parts.append(torch.cat((centres, sizes), dim=-1).reshape(-1, 4))
    return torch.cat(parts).float()
