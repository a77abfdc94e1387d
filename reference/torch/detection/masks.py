"""Masks of objects: what a mask head shall say, and what it says pasted into the image."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from cepheid.reference.data.detection.average_precision import Mask


def crop_masks(masks: Tensor, boxes: Tensor, places: Tensor, size: int) -> Tensor:
    """Return masks within ``places`` on a grid of ``size`` × ``size``, 0 or 1, float32 (d, …).

    ``masks`` (d, s, s) are those of objects within their ``boxes``, corners (d, 4); ``places`` are
    corners, (d, 4). Each value is that at the centre of its part of the place.
    """
    parts = (torch.arange(size, device=boxes.device, dtype=boxes.dtype) + 0.5) / size
    points = places[:, :2, None] + (places[:, 2:] - places[:, :2])[..., None] * parts
    extents = (boxes[:, 2:] - boxes[:, :2]).clamp_min(torch.finfo(boxes.dtype).tiny)
    x, y = (2 * (points - boxes[:, :2, None]) / extents[..., None] - 1).unbind(1)
    return (sample_masks(masks, x, y) >= 0.5).float()


def paste_masks(masks: Tensor, boxes: Tensor, height: int, width: int) -> Tensor:
    """Return masks (d, s, s), of boxes (d, 4), as values of each pixel, (d, height, width).

    They are bilinear between the centres of the parts of the box, and fall to 0 outside.
    """
    extents = (boxes[:, 2:] - boxes[:, :2]).clamp_min(1e-6)
    x, y = (
        2
        * (torch.arange(count, device=boxes.device, dtype=boxes.dtype) + 0.5 - boxes[:, axis, None])
        / extents[:, axis, None]
        - 1
        for axis, count in ((0, width), (1, height))
    )
    return sample_masks(masks, x, y)


def sample_masks(masks: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return bilinear values of masks (d, s, s) on grids with columns x (d, w) and rows y (d, h).

    -1 and 1 are the edges of a mask; it is 0 outside.
    """
    grid = torch.stack(
        (x[:, None, :].expand(-1, y.shape[1], -1), y[:, :, None].expand(-1, -1, x.shape[1])), dim=-1
    )
    return functional.grid_sample(masks[:, None], grid, align_corners=False)[:, 0]


def encode_masks(boxes: Tensor, masks: Tensor, height: int, width: int) -> list[Mask]:
    """Return masks (d, s, s) of boxes, (d, 4) in shares of the sides, in COCO's run-length code."""
    from faster_coco_eval import mask  # slow to import

    scaled = boxes * torch.tensor([width, height, width, height])
    pasted = paste_masks(masks, scaled, height, width) >= 0.5
    bits = pasted.permute(1, 2, 0).to(torch.uint8).numpy()
    return mask.encode(np.asfortranarray(bits)) if len(boxes) else []
