"""Broken variants of ssd: each must miss the target within the full budget.

They are mistakes and tricks that a quality target must detect.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cepheid.benchmarks.ssd.task import Detection
from cepheid.reference.data.detection.loader import Pictures
from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch import broken
from cepheid.reference.torch.ranks.distributed import TorchRanks

Maps = tuple[Sequence[Tensor], Sequence[Tensor]]
ReadBoxes = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Mislabelled:
    """Pictures as they are, with other boxes or labels."""

    pictures: Pictures
    read_boxes: ReadBoxes

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pictures, name)


class ShuffledTargets(Detection):
    """Boxes and classes belong to other images: only where objects often are can be learnt."""

    def open_data(self) -> None:
        """Open the data, then permute the training images' boxes and labels."""
        super().open_data()
        random = make_generator(self.config.seed, "shuffled targets")
        order = random.permutation(self.definition.train_samples)
        read = self.images.read_boxes
        self.loader.pictures = Mislabelled(self.images, lambda rows: read(order[rows]))


class ShuffledClasses(Detection):
    """The classes are shuffled within each training image: only boxes can be learnt."""

    def open_data(self) -> None:
        """Open the data, then permute the labels within each training image."""
        super().open_data()
        self.loader.pictures = Mislabelled(self.images, self.read_other_classes)

    def read_other_classes(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return boxes (n, most, 4) and permuted labels (n, most) of rows (n,)."""
        boxes, labels = self.images.read_boxes(rows)
        labels = labels.copy()
        for row, of_image in zip(rows.tolist(), labels, strict=True):
            random = make_generator(self.config.seed, "shuffled classes", row)
            of_image[of_image > 0] = random.permutation(of_image[of_image > 0])
        return boxes, labels


class Frozen(broken.Frozen, Detection):
    """The weights stay as initialised."""


class Blind(Detection):
    """All images are empty sky: only where objects often are can be learnt."""

    def scale_pixels(self, images: Tensor) -> Tensor:
        """Return zeros of the shape (n, 3, pixels, pixels)."""
        return torch.zeros_like(super().scale_pixels(images))


class ShiftedBoxes(Detection):
    """The boxes of the training images lie lower and to the right by half their size."""

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Return images and shifted targets (share, most, 5)."""
        images, targets = super().next_batch()
        corners = targets[:, :, :4]
        half = (corners[:, :, 2:] - corners[:, :, :2]).repeat(1, 1, 2) / 2
        return images, torch.cat((corners + half, targets[:, :, 4:]), dim=2)


class NoNegatives(Detection):
    """No default box without an object is trained, hard or easy: all become objects."""

    def __init__(self, config: RunConfig, ranks: TorchRanks) -> None:
        super().__init__(config, ranks)
        self.negatives_per_positive = 0


class CoarseFeatures(Detection):
    """Objects are looked for on the coarsest map alone."""

    def make_network(self) -> nn.Module:
        """Return the network; of the default boxes only those of the last map remain."""
        network = super().make_network()
        last = self.levels[-1]
        self.defaults = self.defaults[-(last.cells**2) * last.per_place :]
        return network

    def join(self, maps: Maps) -> tuple[Tensor, Tensor]:
        """Return codes (n, k, 4) and logits (n, k, classes + 1) of the last map."""
        codes, logits = maps
        return super().join((codes[-1:], logits[-1:]))


class NoLocalization(Detection):
    """Every box is a default box: objects are found and named, but not measured."""

    def join(self, maps: Maps) -> tuple[Tensor, Tensor]:
        """Return codes of 0, (n, k, 4), and logits (n, k, classes + 1)."""
        codes, logits = super().join(maps)
        return 0 * codes, logits


VARIANTS: Mapping[str, Callable[[RunConfig, TorchRanks], Detection]] = {
    "shuffled_targets": ShuffledTargets,
    "shuffled_classes": ShuffledClasses,
    "frozen": Frozen,
    "blind": Blind,
    "shifted_boxes": ShiftedBoxes,
    "no_negatives": NoNegatives,
    "coarse_features": CoarseFeatures,
    "no_localization": NoLocalization,
}
