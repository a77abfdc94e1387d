"""The truth of the evaluation scenes, with which detections are compared."""

import numpy as np

from cepheid.reference.data.detection.truth import Mask, Truth
from cepheid.reference.data.scenes.objects import CLASSES
from cepheid.reference.data.scenes.sky import Scenes

AREA_LIMITS = (100.0, 200.0)  # pixels of a mask; about a third of the objects in each range


def make_truth(scenes: Scenes, *, with_masks: bool = False) -> Truth:
    """Return the truth of the evaluation split, whose images are numbered from 0."""
    rows = np.arange(scenes.train_samples, scenes.train_samples + scenes.evaluation_samples)
    labels, boxes = scenes.labels[rows], scenes.boxes[rows].astype(np.float64)
    numbers, places = np.nonzero(labels)
    height, width = scenes.images.shape[1:3]
    packed = scenes.packed_masks[rows][numbers, places]
    return Truth(
        classes=len(CLASSES),
        heights=np.full(len(rows), height),
        widths=np.full(len(rows), width),
        image_numbers=numbers,
        labels=labels[numbers, places],
        boxes=boxes[numbers, places] * [width, height, width, height],
        areas=np.unpackbits(packed, axis=-1).sum(axis=-1, dtype=np.int64),
        is_crowd=np.zeros(len(numbers), bool),
        area_limits=AREA_LIMITS,
        masks=encode_masks(packed, height, width) if with_masks else None,
    )


def encode_masks(packed: np.ndarray, height: int, width: int) -> list[Mask]:
    """Return packed masks, uint8 (n, bytes), in COCO's run-length code."""
    from faster_coco_eval import mask  # not needed where only boxes are compared

    bits = np.unpackbits(packed, axis=-1, count=height * width).reshape(-1, height, width)
    codes: list[Mask] = mask.encode(np.asfortranarray(bits.transpose(1, 2, 0)))
    return codes
