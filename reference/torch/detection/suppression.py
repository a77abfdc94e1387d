"""From scored boxes to proposals and detections: of boxes that overlap the best one stays.

All shapes are static and nothing waits for a value. Images have room for a fixed number of boxes;
proposals that are not there have the score -inf.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from cepheid.reference.torch.detection.default_boxes import compute_overlaps

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


BLOCK = 32  # boxes of which each is decided in turn, before the block suppresses all others


@torch.no_grad()
def select_proposals(
    boxes: Tensor,
    scores: Tensor,
    counts: Sequence[int],
    *,
    most_per_level: int,
    largest_overlap: float,
    most: int,
) -> tuple[Tensor, Tensor]:
    """Return the ``most`` best boxes of each image, (n, most, 4), and their scores, (n, most).

    ``boxes`` (n, k, 4) with ``scores`` (n, k) come level by level; ``counts`` are those of the
    levels. Of each level the best ``most_per_level`` take part, less those that a better one of the
    level overlaps by more than ``largest_overlap``.
    """
    width = min(most_per_level, max(counts))
    best, corners = [], []
    for score, box in zip(scores.split(counts, 1), boxes.split(counts, 1), strict=True):
        score, at = score.topk(min(width, score.shape[1]), dim=1)
        missing = width - score.shape[1]
        best.append(torch.nn.functional.pad(score, (0, missing), value=-torch.inf))
        box = box.gather(1, at[:, :, None].expand(-1, -1, 4))
        corners.append(torch.nn.functional.pad(box, (0, 0, 0, missing)))
    ranked, candidates = torch.cat(best), torch.cat(corners)  # (levels × n, width)
    stays = suppress_in_turn(candidates, ranked > -torch.inf, largest_overlap)
    levels = len(counts)
    ranked = torch.cat(ranked.where(stays, -torch.inf).chunk(levels), dim=1)
    candidates = torch.cat(candidates.chunk(levels), dim=1)
    score, at = ranked.topk(min(most, ranked.shape[1]), dim=1)
    return candidates.gather(1, at[:, :, None].expand(-1, -1, 4)), score


@torch.no_grad()
def select_by_class(
    boxes: Tensor, scores: Tensor, *, least_score: float, largest_overlap: float, most: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the ``most`` best detections of each image: boxes, labels, scores, (n, most, …).

    ``boxes`` are corners (n, k, classes, 4) with ``scores`` (n, k, classes). Of each class those
    above ``least_score`` take part, less those that a better one of the class overlaps by more than
    ``largest_overlap``. Labels begin with 1; where there is no detection they are 0.
    """
    count, width, classes = scores.shape
    score, at = scores.transpose(1, 2).flatten(0, 1).sort(dim=1, descending=True, stable=True)
    corners = boxes.transpose(1, 2).flatten(0, 1).gather(1, at[:, :, None].expand(-1, -1, 4))
    stays = suppress_in_turn(corners, score > least_score, largest_overlap)
    flat = score.where(stays, -torch.inf).view(count, classes * width)
    best, at = flat.topk(min(most, flat.shape[1]), dim=1)
    found = corners.view(count, -1, 4).gather(1, at[:, :, None].expand(-1, -1, 4))
    labels = (at // width + 1).where(best > -torch.inf, 0)
    return found, labels, best


@torch.compiler.disable  # it would compile every turn
def suppress_in_turn(boxes: Tensor, is_valid: Tensor, largest_overlap: float) -> Tensor:
    """Return which boxes, corners (r, k, 4) from the best to the worst, stay in each row, (r, k).

    A box goes if one before it that stays overlaps it by more than ``largest_overlap``. Boxes that
    are not valid, (r, k), go without suppressing any. All rows are decided together, without
    waiting for a value.
    """
    stays = is_valid
    width = boxes.shape[1]
    for first in range(0, width, BLOCK):
        block = boxes[:, first : first + BLOCK]
        is_close = compute_overlaps(block, boxes[:, first:]) > largest_overlap
        size = block.shape[1]
        inner = is_close[:, :, :size].triu(1)
        own = stays[:, first : first + size]
        for at in range(size - 1):
            own = own & ~(inner[:, at] & own[:, at : at + 1])
        after = stays[:, first + size :]
        if after.shape[1]:
            after = after & ~(is_close[:, :, size:] & own[:, :, None]).any(dim=1)
        stays = torch.cat((stays[:, :first], own, after), dim=1)
    return stays
