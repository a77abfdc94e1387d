"""SSD as one writes it first, in an eager loop: the reference is timed against it.

torchvision's SSD would be more usual, but its CPU build needs CUDA libraries. This one has the
default memory layout, torch's default SGD, batch norm of torch, boxes that are matched one image
and one box at a time, and hard negatives that are found by sorting twice, as in the MLPerf
reference. The same loader reads the images.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from cepheid.benchmarks.ssd.model import SSD
from cepheid.benchmarks.ssd.task import WORKLOAD as REFERENCE
from cepheid.benchmarks.ssd.task import Objects, compute_maps, keep_constants
from cepheid.reference.torch.broken import use_default_optimizer
from cepheid.reference.torch.detection.default_boxes import Matches, encode, to_corners
from cepheid.reference.torch.workload import Network, Norms


def make_network(shape: Objects, norms: Norms) -> nn.Module:
    """Return the network with torch's batch norm, channels first."""
    REFERENCE.make_network(shape, norms)  # draws as many numbers as the reference does
    return keep_constants(shape, SSD(shape.facts, shape.levels))


def match(shape: Objects, defaults: Tensor, targets: Tensor) -> Matches:
    """Match the boxes of one image after the other, for targets (n, most, 5)."""
    corners = to_corners(defaults)
    labels = torch.zeros(len(targets), len(corners), dtype=torch.long)
    codes = torch.zeros(len(targets), len(corners), 4)
    for image, boxes in enumerate(targets):
        boxes = boxes[boxes[:, 4] > 0]
        overlaps = torch.stack([_overlap(box, corners) for box in boxes[:, :4]])
        best, of_box = overlaps.max(dim=0)
        for number, default in enumerate(overlaps.argmax(dim=1)):
            best[default], of_box[default] = 2.0, number
        is_found = best > shape.facts["least_overlap"]
        labels[image, is_found] = boxes[of_box[is_found], 4].long()
        codes[image, is_found] = encode(boxes[of_box[is_found], :4], defaults[is_found])
    return Matches(labels, codes)


def compute_loss(shape: Objects, network: Network, pixels: Tensor, targets: Tensor) -> Tensor:
    """Return the mean loss of the images, a scalar; negatives are ranked by sorting twice."""
    contiguous = replace(network, call=lambda images: network.call(images.contiguous()))
    codes, logits = compute_maps(shape, contiguous, pixels)
    matches = match(shape, network.module.defaults, targets)
    mask = matches.labels > 0
    positives = mask.sum(dim=1)
    distances = functional.smooth_l1_loss(codes, matches.codes, reduction="none").sum(dim=2)
    entropies = functional.cross_entropy(logits.transpose(1, 2), matches.labels, reduction="none")
    negatives = entropies.detach().clone()
    negatives[mask] = 0
    rank = negatives.sort(dim=1, descending=True)[1].sort(dim=1)[1]
    is_hard = rank < (shape.negatives_per_positive * positives)[:, None]
    total = (mask.float() * distances).sum(1) + ((mask | is_hard).float() * entropies).sum(1)
    return (total / positives.clamp(min=1)).mean()


def _overlap(box: Tensor, corners: Tensor) -> Tensor:
    """Return intersection over union, (k,), of one box (4,) and corners (k, 4)."""
    low = torch.maximum(box[:2], corners[:, :2])
    high = torch.minimum(box[2:], corners[:, 2:])
    shared = (high - low).clamp(min=0).prod(dim=1)
    areas = (corners[:, 2:] - corners[:, :2]).prod(dim=1)
    return shared / ((box[2:] - box[:2]).prod() + areas - shared)


WORKLOAD = use_default_optimizer(REFERENCE).vary(
    make_network=make_network, compute_loss=compute_loss
)
"""The same network, loss and update in the obvious way."""
