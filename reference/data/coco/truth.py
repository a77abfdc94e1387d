"""The truth of COCO's evaluation images, with which detections are compared."""

import numpy as np

from cepheid.reference.data.coco.photographs import Photographs
from cepheid.reference.data.detection.truth import Truth


def make_truth(photographs: Photographs, *, with_masks: bool = False) -> Truth:
    """Return the truth of the evaluation split, whose images are numbered from 0.

    Images in which nothing is annotated belong to it: everything found there is wrong.
    """
    first = photographs.train_samples
    rows = slice(first, first + photographs.evaluation_samples)
    objects = photographs.objects[photographs.object_ends[first - 1] :]
    counts = np.diff(photographs.object_ends[first - 1 : rows.stop])
    corners = objects["box"][:, :2]
    return Truth(
        classes=len(photographs.class_names),
        heights=photographs.heights[rows],
        widths=photographs.widths[rows],
        image_numbers=np.repeat(np.arange(photographs.evaluation_samples), counts),
        labels=objects["label"].astype(np.int64),
        boxes=np.concatenate([corners, corners + objects["box"][:, 2:]], axis=1),
        areas=np.array(objects["area"]),
        is_crowd=objects["is_crowd"] > 0,
        masks=[code for row in range(rows.start, rows.stop) for code in photographs.read_masks(row)]
        if with_masks
        else None,
    )
