"""The boxes of images are matched to default boxes, all images of a batch together."""

from dataclasses import dataclass

import torch
from torch import Tensor

from cepheid.reference.torch.detection.boxes import compute_overlaps, encode, to_corners

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
