"""What is in the images of an evaluation set, and what a model found there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

COCO_AREA_LIMITS = (32.0**2, 96.0**2)

Mask = Mapping[str, Any]
"""A mask in COCO's run-length code: ``size``, the height and the width, and ``counts``, bytes."""


@dataclass(frozen=True)
class Truth:
    """All objects of an evaluation set.

    ``heights`` and ``widths``, (images,), are those of the original images in pixels. Of each
    object, (n,): the number of its image, its label from 1 to ``classes``, its box in pixels of the
    original image (n, 4), its area in pixels, and whether it is a crowd. Objects whose area is up
    to the first of ``area_limits`` count as small, those from the second on as large.
    """

    classes: int
    heights: np.ndarray
    widths: np.ndarray
    image_numbers: np.ndarray
    labels: np.ndarray
    boxes: np.ndarray
    areas: np.ndarray
    is_crowd: np.ndarray
    area_limits: tuple[float, float] = COCO_AREA_LIMITS
    masks: Sequence[Mask] | None = None


@dataclass(frozen=True)
class Detections:
    """Detections in images of an evaluation set, in any order.

    Of each detection, (n,): the number of its image, its label, its score, and its box in shares of
    the image's width and height (n, 4).
    """

    image_numbers: np.ndarray
    labels: np.ndarray
    scores: np.ndarray
    boxes: np.ndarray
    masks: Sequence[Mask] | None = None

    def sort(self) -> "Detections":
        """Return the same detections in an order that depends on nothing but themselves."""
        boxes = self.boxes.reshape(-1, 4)
        keys = (*boxes.T[::-1], self.labels, -self.scores, self.image_numbers)
        return self.take(np.lexsort(keys))

    def take(self, places: np.ndarray) -> "Detections":
        """Return the detections at ``places``, int64 (m,)."""
        return Detections(
            self.image_numbers[places],
            self.labels[places],
            self.scores[places],
            self.boxes[places],
            None if self.masks is None else [self.masks[place] for place in places],
        )
