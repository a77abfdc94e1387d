"""Broken variants of ssd: each must miss the target within the full budget.

They are mistakes and tricks that a quality target must detect.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cepheid.benchmarks.ssd.task import WORKLOAD, Objects, make_network, make_targets, open_data
from cepheid.reference.data.detection import loader
from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.torch import broken
from cepheid.reference.torch.detection.scenes import Pictures
from cepheid.reference.torch.workload import Network, Norms, Seat, Workload

Maps = tuple[Sequence[Tensor], Sequence[Tensor]]


@dataclass(frozen=True)
class Misclassified:
    """Pictures as they are, with other labels."""

    pictures: loader.Pictures
    read_boxes: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pictures, name)


def open_shuffled_classes(shape: Objects, seat: Seat) -> Pictures:
    """Open the data, then permute the labels within each training image."""
    data = open_data(shape, seat)

    def read_other_classes(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        boxes, labels = data.images.read_boxes(rows)
        labels = labels.copy()
        for row, of_image in zip(rows.tolist(), labels, strict=True):
            random = make_generator(shape.config.seed, "shuffled classes", row)
            of_image[of_image > 0] = random.permutation(of_image[of_image > 0])
        return boxes, labels

    data.loader.images = Misclassified(data.images, read_other_classes)
    return data


def open_shifted_boxes(shape: Objects, seat: Seat) -> Pictures:
    """Open the data; training boxes lie lower and to the right by half their size."""

    def shift(first: int, boxes: Tensor, labels: Tensor) -> Tensor:
        half = (boxes[:, :, 2:] - boxes[:, :, :2]).repeat(1, 1, 2) / 2
        return make_targets(first, boxes + half, labels)

    return Pictures(shape, seat, shape.augmentation, shift)


def make_coarse_network(shape: Objects, norms: Norms) -> nn.Module:
    """Return the network; of the default boxes only those of the last map remain."""
    network = make_network(shape, norms)
    last = shape.levels[-1]
    defaults = network.get_buffer("defaults")[-(last.cells**2) * last.per_place :]
    network.register_buffer("defaults", defaults, persistent=False)
    return network


def hide_images(network: Network) -> Network:
    """Return a network that sees empty sky: only where objects often are can be learnt."""
    return replace(network, call=lambda pixels: network.call(torch.zeros_like(pixels)))


def keep_last_map(network: Network) -> Network:
    """Return a network that looks for objects on the coarsest map alone."""

    def compute(pixels: Tensor) -> Maps:
        codes, logits = network.call(pixels)
        return codes[-1:], logits[-1:]

    return replace(network, call=compute)


def zero_codes(network: Network) -> Network:
    """Return a network whose boxes are the default boxes: found and named, but not measured."""

    def compute(pixels: Tensor) -> Maps:
        codes, logits = network.call(pixels)
        return [0 * each for each in codes], logits

    return replace(network, call=compute)


VARIANTS: Mapping[str, Workload[Objects]] = {
    "shuffled_targets": broken.shuffle_objects(WORKLOAD),
    "shuffled_classes": WORKLOAD.vary(open_data=open_shuffled_classes),
    "frozen": broken.freeze(WORKLOAD),
    "blind": broken.change_network(WORKLOAD, hide_images),
    "shifted_boxes": WORKLOAD.vary(open_data=open_shifted_boxes),
    # No default box without an object is trained, hard or easy.
    "no_negatives": WORKLOAD.vary(
        read_shape=lambda config: replace(Objects.read(config), negatives_per_positive=0)
    ),
    "coarse_features": broken.change_network(
        WORKLOAD.vary(make_network=make_coarse_network), keep_last_map
    ),
    "no_localization": broken.change_network(WORKLOAD, zero_codes),
}
