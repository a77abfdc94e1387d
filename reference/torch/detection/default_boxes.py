"""Boxes as tensors, default boxes, and the loss of a detector that has them (1512.02325).

The last dimension of boxes has four values. Corners are left, top, right, bottom; centres are the
centre's x and y, width and height. Both are in the same unit: pixels, or parts of the sides.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import functional


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


VARIANCES = (0.1, 0.2)  # of centres and sizes in the code (Liu et al. 2016, arXiv:1512.02325)
PLAIN = (1.0, 1.0)  # of the code of a proposal network (Ren et al. 2015, arXiv:1506.01497)
LARGEST_LOG_RATIO = 4.135  # log(1000 / 16): a decoded box stays finite whatever the network says


def to_centres(corners: Tensor) -> Tensor:
    """Return boxes (…, 4) as centres."""
    low, high = corners.split(2, dim=-1)
    return torch.cat(((low + high) / 2, high - low), dim=-1)


def to_corners(centres: Tensor) -> Tensor:
    """Return boxes (…, 4) as corners."""
    middle, size = centres.split(2, dim=-1)
    return torch.cat((middle - size / 2, middle + size / 2), dim=-1)


def compute_areas(corners: Tensor) -> Tensor:
    """Return the areas (…) of boxes (…, 4); one whose corners are in the wrong order has none."""
    width, height = (corners[..., 2:] - corners[..., :2]).clamp_min(0).unbind(-1)
    return width * height


def compute_overlaps(first: Tensor, second: Tensor) -> Tensor:
    """Return intersection over union, (…, m, k), of corners (…, m, 4) and (…, k, 4).

    It is 0 where both boxes are empty.
    """
    # Axis by axis, because a tensor (…, m, k, 2) would be the largest of all.
    across, down = (
        torch.minimum(first[..., :, None, high], second[..., None, :, high])
        .sub_(torch.maximum(first[..., :, None, high - 2], second[..., None, :, high - 2]))
        .clamp_min_(0)
        for high in (2, 3)
    )
    shared = across.mul_(down)
    union = compute_areas(first)[..., :, None] + compute_areas(second)[..., None, :] - shared
    return shared / union.clamp_min_(torch.finfo(union.dtype).tiny)


def encode(corners: Tensor, defaults: Tensor, variances: tuple[float, float] = VARIANCES) -> Tensor:
    """Return the code (…, 4) of boxes, relative to default boxes, which are centres (…, 4).

    It is the offset of the centre in sizes of the default box, and the logarithm of the ratio of
    the sizes, both divided by their variances. Boxes must have an area.
    """
    boxes = to_centres(corners)
    offsets = (boxes[..., :2] - defaults[..., :2]) / defaults[..., 2:] / variances[0]
    ratios = (boxes[..., 2:] / defaults[..., 2:]).log() / variances[1]
    return torch.cat((offsets, ratios), dim=-1)


def decode(code: Tensor, defaults: Tensor, variances: tuple[float, float] = VARIANCES) -> Tensor:
    """Return the corners (…, 4) of boxes, from their code relative to default boxes (…, 4)."""
    offsets, ratios = code.split(2, dim=-1)
    middle = offsets * variances[0] * defaults[..., 2:] + defaults[..., :2]
    size = (ratios * variances[1]).clamp_max(LARGEST_LOG_RATIO).exp() * defaults[..., 2:]
    return to_corners(torch.cat((middle, size), dim=-1))


def clip_boxes(boxes: Tensor, extents: Tensor) -> Tensor:
    """Return corners (n, k, 4) within images of widths and heights ``extents``, (n, 2)."""
    return torch.minimum(boxes.clamp_min(0), extents.repeat(1, 2)[:, None])


BACKGROUND = 0  # also the label of rows that only fill up a batch


@dataclass(frozen=True)
class Matches:
    """What k default boxes of n images shall say.

    ``labels`` are (n, k), BACKGROUND where there is no object. ``codes``, (n, k, 4), are those of
    the matched boxes, and 0 elsewhere.
    """

    labels: Tensor
    codes: Tensor


@torch.no_grad()
def match_default_boxes(
    boxes: Tensor, labels: Tensor, defaults: Tensor, least_overlap: float = 0.5
) -> Matches:
    """Match boxes, corners (n, m, 4) with labels (n, m), to default boxes, centres (k, 4).

    A default box belongs to the box that it overlaps most, if by more than ``least_overlap``.
    Besides, each box claims the default box that overlaps it most; if several boxes claim the same
    one, the last gets it. Rows with the label BACKGROUND are no boxes.
    """
    is_box = labels != BACKGROUND
    overlaps = compute_overlaps(boxes, to_corners(defaults)).where(is_box[:, :, None], -1.0)
    best, of_box = overlaps.max(dim=1)
    numbers = torch.arange(labels.shape[1], device=labels.device).where(is_box, -1)
    claims = torch.full_like(of_box, -1).scatter_reduce_(
        1, overlaps.argmax(dim=2), numbers, reduce="amax"
    )
    of_box = claims.where(claims >= 0, of_box)
    is_positive = (claims >= 0) | (best > least_overlap)
    codes = encode(boxes.gather(1, of_box[:, :, None].expand(-1, -1, 4)), defaults)
    return Matches(
        labels.gather(1, of_box).where(is_positive, BACKGROUND),
        # Not a product: the code of a row that is no box is infinite.
        codes.where(is_positive[:, :, None], 0.0),
    )


def compute_multibox_losses(
    codes: Tensor, logits: Tensor, matches: Matches, negatives_per_positive: float = 3
) -> Tensor:
    """Return the loss of each image, (n,), from codes (n, k, 4) and logits (n, k, classes).

    It is the smooth L1 loss of the codes of positives plus the cross-entropy of positives and of
    the hardest negatives, divided by the number of positives. An image without any has no loss.
    """
    is_positive = matches.labels != BACKGROUND
    positives = is_positive.sum(dim=1)
    distances = functional.smooth_l1_loss(codes, matches.codes, reduction="none").sum(dim=2)
    entropies = functional.cross_entropy(
        logits.flatten(0, 1), matches.labels.flatten(), reduction="none"
    ).view_as(distances)
    counts = (negatives_per_positive * positives).ceil().long()
    is_counted = is_positive | find_hardest(entropies.detach(), ~is_positive, counts)
    losses = distances.where(is_positive, 0.0) + entropies.where(is_counted, 0.0)
    return losses.sum(dim=1) / positives.clamp_min(1)


@torch.no_grad()
def find_hardest(losses: Tensor, is_candidate: Tensor, counts: Tensor) -> Tensor:
    """Return which of the candidates, (n, k), have the ``counts``, (n,), largest losses, (n, k).

    Of equal losses the first is chosen. If there are fewer candidates, all are.
    """
    order = losses.where(is_candidate, -1.0).argsort(dim=1, descending=True, stable=True)
    places = torch.arange(losses.shape[1], device=losses.device)
    chosen = torch.zeros_like(is_candidate).scatter_(1, order, places < counts[:, None])
    return chosen & is_candidate
