"""Boxes as tensors: two forms, their overlap, and their code relative to default boxes.

The last dimension has four values. Corners are left, top, right, bottom; centres are the centre's x
and y, width and height. Both are in the same unit: pixels, or parts of the image's sides.
"""

import torch
from torch import Tensor

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
