"""Mask R-CNN as one writes it first, in an eager loop: the reference is timed against it.

torchvision's would be more usual, but its CPU build needs CUDA libraries. This one has the default
memory layout, torch's default SGD, proposals that are suppressed one box at a time, and features
of boxes level by level, from the four neighbours of each place. The same loader reads the images.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import convert_conv2d_weight_memory_format

from cepheid.benchmarks.mask_rcnn import task
from cepheid.benchmarks.mask_rcnn.detector import MaskRCNN
from cepheid.benchmarks.mask_rcnn.model import Maps
from cepheid.reference.torch.broken import use_default_optimizer
from cepheid.reference.torch.detection.default_boxes import (
    PLAIN,
    clip_boxes,
    compute_overlaps,
    decode,
)
from cepheid.reference.torch.detection.roi_align import choose_levels
from cepheid.reference.torch.detection.scenes import Scenes
from cepheid.reference.torch.workload import Norms


class PlainNetwork(MaskRCNN):
    """The same network with loops over images, levels and boxes. Shapes are those of MaskRCNN."""

    def extract(self, images: Tensor) -> tuple[Maps, Tensor, Tensor]:
        """Return what there is of images, (n, 3, height, width), channels first in memory."""
        return super().extract(images.contiguous())

    @torch.no_grad()
    def propose(self, scores: Tensor, codes: Tensor, extents: Tensor) -> tuple[Tensor, Tensor]:
        """Return the best boxes of each image, (n, k, 4), with scores (n, k), -inf for none."""
        facts = self.facts
        most = facts["most_per_level"][0 if self.training else 1]
        corners = clip_boxes(decode(codes, self.anchors, PLAIN), extents)
        boxes = corners.new_zeros(len(scores), self.candidates, 4)
        best = torch.full(boxes.shape[:2], -torch.inf, device=scores.device)
        for image, (of_image, score) in enumerate(zip(corners, scores, strict=True)):
            kept_boxes, kept_scores = [], []
            levels = of_image.split(self.counts), score.split(self.counts)
            for box, value in zip(*levels, strict=True):
                value, order = value.topk(min(most, len(value)))
                stays = suppress_one_by_one(box[order], facts["proposal_overlap"])
                kept_boxes.append(box[order][stays])
                kept_scores.append(value[stays])
            joined = torch.cat(kept_scores)
            value, order = joined.topk(min(self.candidates, len(joined)))
            boxes[image, : len(order)] = torch.cat(kept_boxes)[order]
            best[image, : len(order)] = value
        return boxes, best

    def align(self, maps: Sequence[Tensor], boxes: Tensor, bins: int) -> Tensor:
        """Return the features of boxes (n, r, 4), (n × r, channels, bins, bins)."""
        used = len(maps) - self.coarser
        images = torch.arange(len(boxes), device=boxes.device).repeat_interleave(boxes.shape[1])
        boxes = boxes.flatten(0, 1)
        levels = choose_levels(boxes, self.facts["box_unit"], used)
        shape = (len(boxes), maps[0].shape[1], bins, bins)
        result = torch.zeros(shape, dtype=maps[0].dtype, device=boxes.device)
        for level, step in enumerate(self.steps[:used]):
            (here,) = (levels == level).nonzero(as_tuple=True)
            result[here] = align_by_gathering(
                maps[level], images[here], boxes[here] / step - self.offset, bins
            )
        return result


def align_by_gathering(features: Tensor, images: Tensor, boxes: Tensor, bins: int) -> Tensor:
    """Return the features of boxes (r, 4) of ``images`` (r,), (r, channels, bins, bins).

    It gathers the four neighbours of each place in maps (n, channels, y, x), which is how RoIAlign
    is written without a kernel of its own.
    """
    height, width = features.shape[2:]
    parts = (torch.arange(2 * bins, device=boxes.device) + 0.5) / (2 * bins)
    x, y = (
        (boxes[:, axis, None] + (boxes[:, axis + 2] - boxes[:, axis])[:, None] * parts).clamp(
            0, size - 1
        )
        for axis, size in ((0, width), (1, height))
    )
    x0, y0 = x.long(), y.long()
    x1, y1 = (x0 + 1).clamp_max(width - 1), (y0 + 1).clamp_max(height - 1)
    right, below = (x - x0)[:, None, :, None], (y - y0)[:, :, None, None]
    places = features.permute(0, 2, 3, 1)

    def gather(rows: Tensor, columns: Tensor) -> Tensor:
        return places[images[:, None, None], rows[:, :, None], columns[:, None, :]]

    upper = gather(y0, x0) * (1 - right) + gather(y0, x1) * right
    lower = gather(y1, x0) * (1 - right) + gather(y1, x1) * right
    values = upper * (1 - below) + lower * below  # (r, 2 × bins, 2 × bins, channels)
    return functional.avg_pool2d(values.permute(0, 3, 1, 2), 2)


def suppress_one_by_one(boxes: Tensor, largest_overlap: float) -> Tensor:
    """Return which boxes, corners (k, 4) from the best to the worst, stay, (k,)."""
    stays = torch.ones(len(boxes), dtype=torch.bool, device=boxes.device)
    for at, box in enumerate(boxes):
        if stays[at]:
            overlaps = compute_overlaps(box[None], boxes[at + 1 :])[0]
            stays[at + 1 :] &= overlaps <= largest_overlap
    return stays


def make_network(shape: Scenes, norms: Norms) -> nn.Module:
    """Return the network, channels first."""
    network = task.make_network(shape, norms, PlainNetwork)
    return convert_conv2d_weight_memory_format(network, torch.contiguous_format)


WORKLOAD = use_default_optimizer(task.WORKLOAD).vary(make_network=make_network)
"""The same network, loss and update in the obvious way."""
