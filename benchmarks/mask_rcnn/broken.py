"""Broken variants of mask_rcnn: each must miss a target within the full budget.

They are mistakes and tricks that a quality target must detect.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cepheid.benchmarks.mask_rcnn.detector import MaskRCNN
from cepheid.benchmarks.mask_rcnn.task import Segmentation
from cepheid.reference.data.detection.loader import MaskedPictures
from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch import broken
from cepheid.reference.torch.detection.roi_align import choose_levels
from cepheid.reference.torch.detection.sampling import draw_uniform
from cepheid.reference.torch.detection.targets import Truth
from cepheid.reference.torch.ranks.distributed import TorchRanks

RANDOM_BOXES = 2  # purpose of random numbers


@dataclass(frozen=True)
class Mislabelled:
    """Pictures as they are, with the objects of other rows."""

    pictures: MaskedPictures
    order: np.ndarray

    def read_boxes(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return boxes (n, most, 4) and labels (n, most) of other rows."""
        return self.pictures.read_boxes(self.order[rows])

    def read_mask_crops(self, rows: np.ndarray, size: int) -> np.ndarray:
        """Return masks (n, most, size, size) of other rows."""
        return self.pictures.read_mask_crops(self.order[rows], size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pictures, name)


class ShuffledTargets(Segmentation):
    """Objects belong to other images: only where objects often are can be learnt."""

    def open_data(self) -> None:
        """Open the data, then permute the training images' objects."""
        super().open_data()
        random = make_generator(self.config.seed, "shuffled targets")
        order = random.permutation(self.definition.train_samples)
        self.loader.pictures = Mislabelled(self.images, order)


class Frozen(broken.Frozen, Segmentation):
    """The weights stay as initialised."""


class BoxMasks(Segmentation):
    """The mask of an object is its whole box."""

    def predict(self, images: Tensor, extents: Tensor | None = None, /) -> tuple[Tensor, ...]:
        """Return detections whose masks (n, d, s, s) are 1 everywhere."""
        *others, masks = super().predict(images, extents)
        return *others, torch.ones_like(masks)


class EllipticMasks(Segmentation):
    """The mask of an object is the ellipse in its box."""

    def predict(self, images: Tensor, extents: Tensor | None = None, /) -> tuple[Tensor, ...]:
        """Return detections whose masks (n, d, s, s) are 1 in an ellipse."""
        *others, masks = super().predict(images, extents)
        places = torch.linspace(-1, 1, masks.shape[-1] + 1, device=masks.device)
        squares = ((places[1:] + places[:-1]) / 2).square()
        return *others, (squares[:, None] + squares < 1).to(masks.dtype).expand_as(masks)


class QuantizedNetwork(MaskRCNN):
    """Boxes begin and end at whole places of their map, as in RoIPool."""

    offset = 0.0

    def align(self, maps: Sequence[Tensor], boxes: Tensor, bins: int) -> Tensor:
        """Return the features of boxes (n, r, 4) that were moved to whole places."""
        steps = torch.tensor(self.steps, device=boxes.device)
        step = steps[choose_levels(boxes, self.facts["box_unit"], len(maps))][..., None]
        return super().align(maps, (boxes / step).round() * step, bins)


class Quantized(Segmentation):
    """Features are not aligned with the boxes."""

    network_type = QuantizedNetwork


class RandomNetwork(MaskRCNN):
    """Proposals lie anywhere, with sides from an eighth to a half of the image's."""

    def propose(self, scores: Tensor, codes: Tensor, extents: Tensor) -> tuple[Tensor, Tensor]:
        """Return random boxes of each image, (n, k, 4), with equal scores (n, k)."""
        keys = (scores[:, 0] * 2**20).long()  # other boxes in each step
        drawn = draw_uniform(keys, 4 * self.candidates, self.seed, RANDOM_BOXES)
        corners, sides = drawn.view(-1, self.candidates, 4).split(2, dim=2)
        sides = 0.125 + 0.375 * sides
        low = corners * (1 - sides)
        boxes = torch.cat((low, low + sides), dim=2) * extents.repeat(1, 2)[:, None]
        return boxes, torch.ones_like(boxes[..., 0])


class RandomProposals(Segmentation):
    """The proposal network is not used."""

    network_type = RandomNetwork


class ShuffledNetwork(MaskRCNN):
    """The heads learn from the next object of the image instead of the one in their box."""

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


class ShuffledInstances(Segmentation):
    """Heads are trained with class, box and mask of another object of the image."""

    network_type = ShuffledNetwork


class Blind(Segmentation):
    """All images are empty sky: only where objects often are can be learnt."""

    def scale_pixels(self, images: Tensor) -> Tensor:
        """Return zeros of the shape (n, 3, pixels, pixels)."""
        return torch.zeros_like(super().scale_pixels(images))


VARIANTS: Mapping[str, Callable[[RunConfig, TorchRanks], Segmentation]] = {
    "shuffled_targets": ShuffledTargets,
    "frozen": Frozen,
    "box_masks": BoxMasks,
    "elliptic_masks": EllipticMasks,
    "quantized": Quantized,
    "random_proposals": RandomProposals,
    "shuffled_instances": ShuffledInstances,
    "blind": Blind,
}
