"""The loss of a detector with default boxes (Liu et al. 2016, arXiv:1512.02325, section 2.2)."""

import torch
from torch import Tensor
from torch.nn import functional

from cepheid.reference.torch.detection.matching import BACKGROUND, Matches


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
