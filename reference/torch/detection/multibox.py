"""Match the boxes of images to default boxes; compute the loss (Liu et al. 2016, 1512.02325)."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

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
