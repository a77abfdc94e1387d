"""From scored boxes to detections: of boxes that overlap, the one with the best score stays."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from cepheid.reference.torch.detection.boxes import compute_overlaps

LARGEST_PIECE = 2**24  # overlaps that are computed at once: 64 MB


@dataclass(frozen=True)
class Detections:
    """The ``images`` (d,), ``labels`` (d,), ``scores`` (d,) and corners ``boxes`` (d, 4).

    An image is its number in the batch. They come by image, then by score.
    """

    images: Tensor
    labels: Tensor
    scores: Tensor
    boxes: Tensor

    @classmethod
    def join(cls, parts: Iterable[Self]) -> Self:
        """Return all ``parts`` as one."""
        columns = zip(
            *((part.images, part.labels, part.scores, part.boxes) for part in parts), strict=True
        )
        return cls(*map(torch.cat, columns))


@torch.no_grad()
def select_detections(
    boxes: Tensor,
    scores: Tensor,
    *,
    least_score: float,
    largest_overlap: float,
    most_per_class: int,
    most: int,
) -> Detections:
    """Return the detections among boxes (n, k, 4) with the scores (n, k, classes) of each class.

    For each image and class: the best ``most_per_class`` boxes of a score above ``least_score``,
    less those that a better one of the class overlaps by ``largest_overlap`` or more. Of these the
    best ``most`` of the image. Labels begin with 1.
    """
    count, _, classes = scores.shape
    by_class = scores.transpose(1, 2).flatten(0, 1)  # (n × classes, k)
    passing = (by_class > least_score).sum(dim=1)
    rows = passing.nonzero()[:, 0]
    width = min(most_per_class, int(passing.max())) if len(rows) else 0
    kept = scores.new_zeros(count * classes, width)
    places = torch.zeros_like(kept, dtype=torch.long)
    for part in rows.split(max(1, LARGEST_PIECE // max(1, width) ** 2)):
        best, at = by_class[part].topk(width, dim=1)
        candidates = boxes[part[:, None] // classes, at]
        is_valid = best > least_score
        is_kept = suppress_overlapping(candidates, is_valid, largest_overlap)
        kept[part], places[part] = best.where(is_kept, 0.0), at
    flat = kept.view(count, -1)
    best, at = flat.topk(min(most, flat.shape[1]), dim=1)
    image, rank = (best > 0).nonzero(as_tuple=True)
    at = at[image, rank]
    label = at // max(1, width)
    place = places.view(count, -1)[image, at]
    return Detections(image, label + 1, best[image, rank], boxes[image, place])


def suppress_overlapping(boxes: Tensor, is_valid: Tensor, largest_overlap: float) -> Tensor:
    """Return which boxes, corners (r, k, 4) from the best to the worst, stay in each row, (r, k).

    A box goes if one before it that stays overlaps it by ``largest_overlap`` or more. Boxes that
    are not valid, (r, k), go without suppressing any.

    All boxes are decided together: whether one stays depends on those before it alone, so that
    repeating the rule changes nothing from the longest chain of such decisions on. These are
    short, at most k.
    """
    is_close = (compute_overlaps(boxes, boxes) >= largest_overlap).triu_(diagonal=1)
    is_close = is_close.to(boxes.dtype)
    stays = is_valid
    while True:
        pressure = (stays.to(boxes.dtype)[:, None] @ is_close)[:, 0]
        after = is_valid & (pressure == 0)
        if torch.equal(after, stays):
            return stays
        stays = after
