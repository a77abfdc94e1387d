"""SSD as one writes it first, in an eager loop: the reference is timed against it.

torchvision's SSD would be more usual, but its CPU build needs CUDA libraries. This one has the
default memory layout, torch's default SGD, batch norm of torch, boxes that are matched one image
and one box at a time, and hard negatives that are found by sorting twice, as in the MLPerf
reference. The same loader reads the images.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from cepheid.benchmarks.ssd.model import SSD
from cepheid.benchmarks.ssd.task import Detection
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch.detection.boxes import encode, to_corners
from cepheid.reference.torch.detection.matching import Matches
from cepheid.reference.torch.ranks.distributed import TorchRanks


def create(config: RunConfig, ranks: TorchRanks) -> "PlainDetection":
    """Return the task; ``config`` has compile=off and the precision of the reference."""
    return PlainDetection(config, ranks)


class PlainDetection(Detection):
    """The same network, loss and update in the obvious way. Shapes are those of ``Detection``."""

    def make_network(self) -> nn.Module:
        """Return the network with torch's batch norm, channels first."""
        super().make_network()
        return SSD(self.facts, self.levels)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return torch's default SGD."""
        self.parallel, values = self.model, self.hyperparameters
        return torch.optim.SGD(
            self.model.parameters(),
            lr=values.opt_base_learning_rate,
            momentum=values.opt_momentum,
            weight_decay=values.opt_weight_decay,
        )

    def scale_pixels(self, images: Tensor) -> Tensor:
        """Return images as float32 (n, 3, pixels, pixels), channels first."""
        return super().scale_pixels(images).contiguous()

    def match(self, targets: Tensor) -> Matches:
        """Match the boxes of one image after the other, for targets (n, most, 5)."""
        corners = to_corners(self.defaults)
        labels = torch.zeros(len(targets), len(corners), dtype=torch.long)
        codes = torch.zeros(len(targets), len(corners), 4)
        for image, boxes in enumerate(targets):
            boxes = boxes[boxes[:, 4] > 0]
            overlaps = torch.stack([_overlap(box, corners) for box in boxes[:, :4]])
            best, of_box = overlaps.max(dim=0)
            for number, default in enumerate(overlaps.argmax(dim=1)):
                best[default], of_box[default] = 2.0, number
            found = best > self.facts["least_overlap"]
            labels[image, found] = boxes[of_box[found], 4].long()
            codes[image, found] = encode(boxes[of_box[found], :4], self.defaults[found])
        return Matches(labels, codes)

    def compute_loss(self, images: Tensor, targets: Tensor, /) -> Tensor:
        """Return the mean loss of the images, a scalar; negatives are ranked by sorting twice."""
        codes, logits = self.join(self.parallel(self.scale_pixels(images)))
        matches = self.match(targets)
        mask = matches.labels > 0
        positives = mask.sum(dim=1)
        distances = functional.smooth_l1_loss(codes, matches.codes, reduction="none").sum(dim=2)
        entropies = functional.cross_entropy(
            logits.transpose(1, 2), matches.labels, reduction="none"
        )
        negatives = entropies.detach().clone()
        negatives[mask] = 0
        rank = negatives.sort(dim=1, descending=True)[1].sort(dim=1)[1]
        is_hard = rank < (self.negatives_per_positive * positives)[:, None]
        total = (mask.float() * distances).sum(1) + ((mask | is_hard).float() * entropies).sum(1)
        return (total / positives.clamp(min=1)).mean()


def _overlap(box: Tensor, corners: Tensor) -> Tensor:
    """Return intersection over union, (k,), of one box (4,) and corners (k, 4)."""
    low = torch.maximum(box[:2], corners[:, :2])
    high = torch.minimum(box[2:], corners[:, 2:])
    shared = (high - low).clamp(min=0).prod(dim=1)
    areas = (corners[:, 2:] - corners[:, :2]).prod(dim=1)
    return shared / ((box[2:] - box[:2]).prod() + areas - shared)
