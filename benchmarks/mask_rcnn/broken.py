"""Broken variants of mask_rcnn: each must miss a target within the full budget.

They are mistakes and tricks that a quality target must detect.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from cepheid.benchmarks.mask_rcnn import task
from cepheid.benchmarks.mask_rcnn.detector import MaskRCNN
from cepheid.benchmarks.mask_rcnn.model import Maps
from cepheid.benchmarks.mask_rcnn.task import WORKLOAD
from cepheid.reference.torch import broken
from cepheid.reference.torch.detection.roi_align import choose_levels
from cepheid.reference.torch.detection.sampling import Truth, draw_uniform
from cepheid.reference.torch.detection.scenes import Scenes
from cepheid.reference.torch.workload import Network, Workload

RANDOM_BOXES = 2  # purpose of random numbers


def predict_boxes(shape: Scenes, network: Network, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Return detections whose masks (n, d, s, s) are 1 everywhere: the whole box."""
    *others, masks = task.predict(shape, network, *inputs)
    return *others, torch.ones_like(masks)


def predict_ellipses(shape: Scenes, network: Network, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Return detections whose masks (n, d, s, s) are 1 in the ellipse of their box."""
    *others, masks = task.predict(shape, network, *inputs)
    places = torch.linspace(-1, 1, masks.shape[-1] + 1, device=masks.device)
    squares = ((places[1:] + places[:-1]) / 2).square()
    return *others, (squares[:, None] + squares < 1).to(masks.dtype).expand_as(masks)


class QuantizedNetwork(MaskRCNN):
    """Features are not aligned: boxes begin and end at whole places of their map (RoIPool)."""

    offset = 0.0

    def align(self, maps: Sequence[Tensor], boxes: Tensor, bins: int) -> Tensor:
        """Return the features of boxes (n, r, 4) that were moved to whole places."""
        steps = torch.tensor(self.steps, device=boxes.device)
        step = steps[choose_levels(boxes, self.facts["box_unit"], len(maps))][..., None]
        return super().align(maps, (boxes / step).round() * step, bins)


class RandomNetwork(MaskRCNN):
    """Proposals are not found but lie anywhere, with sides from 1/8 to 1/2 of the image's."""

    def propose(self, scores: Tensor, codes: Tensor, extents: Tensor) -> tuple[Tensor, Tensor]:
        """Return random boxes of each image, (n, k, 4), with equal scores (n, k)."""
        keys = (scores[:, 0] * 2**20).long()  # other boxes in each step
        drawn = draw_uniform(keys, 4 * self.candidates, self.seed, RANDOM_BOXES)
        corners, sides = drawn.view(-1, self.candidates, 4).split(2, dim=2)
        sides = 0.125 + 0.375 * sides
        low = corners * (1 - sides)
        boxes = torch.cat((low, low + sides), dim=2) * extents.repeat(1, 2)[:, None]
        return boxes, torch.ones_like(boxes[..., 0])


class ShuffledNetwork(MaskRCNN):
    """The heads learn class, box and mask of the next object of the image, not of their own."""

    def learn(
        self, maps: Sequence[Tensor], samples: Tensor, losses: Tensor, targets: Tensor
    ) -> Tensor:
        """Return the losses of objects in exchanged places, (n,)."""
        truth = Truth.unpack(targets)
        count = (truth.labels > 0).sum(1).clamp_min(1)[:, None]
        found = samples[..., 4]
        other = ((found + 1) % count).where(found >= 0, found)
        samples = torch.cat((samples[..., :4], other[..., None], samples[..., 5:]), dim=2)
        return super().learn(maps, samples, losses, targets)


class BlindNetwork(MaskRCNN):
    """All images are empty sky: only where objects often are can be learnt."""

    def extract(self, images: Tensor) -> tuple[Maps, Tensor, Tensor]:
        """Return what there is of zeros, in place of images (n, 3, height, width)."""
        return super().extract(torch.zeros_like(images))


def use_network(kind: type[MaskRCNN]) -> Workload[Scenes]:
    """Return the workload with another type of network."""
    return WORKLOAD.vary(make_network=partial(task.make_network, kind=kind))


VARIANTS: Mapping[str, Workload[Scenes]] = {
    "shuffled_targets": broken.shuffle_objects(WORKLOAD),
    "frozen": broken.freeze(WORKLOAD),
    "box_masks": WORKLOAD.vary(predict=predict_boxes),
    "elliptic_masks": WORKLOAD.vary(predict=predict_ellipses),
    "quantized": use_network(QuantizedNetwork),
    "random_proposals": use_network(RandomNetwork),
    "shuffled_instances": use_network(ShuffledNetwork),
    "blind": use_network(BlindNetwork),
}
