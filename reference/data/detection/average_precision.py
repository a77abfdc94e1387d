"""What is in the images of an evaluation set, what a model found there, and how well they agree.

That is COCO's average precision (Lin et al. 2014, arXiv:1405.0312; cocodataset.org). The work is
done by faster-coco-eval, whose results are those of pycocotools to the last digit. The result does
not depend on the order of the detections, so that it is the same for any number of ranks that found
them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from faster_coco_eval import COCO, COCOeval_faster, mask

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


LARGEST_AREA = 1e5**2  # COCO's own
ALL, SMALL, MEDIUM, LARGE = range(4)  # area ranges, in COCO's order


METRICS = ("ap", "ap50", "ap75")


@dataclass(frozen=True)
class AveragePrecision:
    """Average precision, from 0 to 1; None where there is no object of that kind.

    ``ap`` is the mean over the thresholds 0.50, 0.55 … 0.95 of the intersection over union and over
    all classes, ``ap50`` and ``ap75`` are those of single thresholds. ``by_class`` has a value for
    each class. Of one class in one image, the 100 detections with the highest scores count.
    """

    ap: float | None
    ap50: float | None
    ap75: float | None
    ap_small: float | None
    ap_medium: float | None
    ap_large: float | None
    by_class: tuple[float | None, ...]

    def name_metrics(self, prefix: str = "") -> dict[str, float]:
        """Return the metrics of a benchmark by name, 0 where nothing can be found."""
        return {prefix + metric: getattr(self, metric) or 0.0 for metric in METRICS}


def compute_average_precision(
    truth: Truth, detections: Detections, *, of_masks: bool = False
) -> AveragePrecision:
    """Return the average precision of boxes, or ``of_masks``.

    ``truth`` and ``detections`` have arrays (n, …) as their classes say. Raises ValueError where
    detections are of an image or a class that the truth does not have.
    """
    _check(truth, detections)
    low, high = truth.area_limits
    common = {
        "images": [
            {"id": number, "height": int(height), "width": int(width)}
            for number, (height, width) in enumerate(zip(truth.heights, truth.widths, strict=True))
        ],
        "categories": [{"id": label, "name": str(label)} for label in range(1, truth.classes + 1)],
    }
    evaluation = COCOeval_faster(
        COCO({**common, "annotations": _list_truth(truth, of_masks)}),
        COCO({**common, "annotations": _list_detections(truth, detections.sort(), of_masks)}),
        "segm" if of_masks else "bbox",
        ranges={"small": [0.0, low], "medium": [low, high], "large": [high, LARGEST_AREA]},
        rle_iou_max_workers=1,
    )
    evaluation.evaluate()
    evaluation.accumulate()
    # By threshold, recall, class, area range; -1 where there is no object.
    precision = np.asarray(evaluation.eval["precision"])[..., -1]
    thresholds = evaluation.params.iouThrs
    return AveragePrecision(
        ap=_average(precision[..., ALL]),
        ap50=_average(precision[np.isclose(thresholds, 0.5)][..., ALL]),
        ap75=_average(precision[np.isclose(thresholds, 0.75)][..., ALL]),
        ap_small=_average(precision[..., SMALL]),
        ap_medium=_average(precision[..., MEDIUM]),
        ap_large=_average(precision[..., LARGE]),
        by_class=tuple(_average(precision[:, :, k, ALL]) for k in range(truth.classes)),
    )


def _check(truth: Truth, detections: Detections) -> None:
    for name, low, high, values in (
        ("image", 0, len(truth.heights) - 1, detections.image_numbers),
        ("class", 1, truth.classes, detections.labels),
    ):
        wrong = values[(values < low) | (values > high)]
        if wrong.size:
            raise ValueError(f"a detection has the {name} {wrong[0]}, expected {low} to {high}")


def _list_truth(truth: Truth, of_masks: bool) -> list[dict[str, Any]]:
    crowds, scores = truth.is_crowd.astype(int), np.ones(len(truth.labels))
    return _list_annotations(truth, of_masks, truth.boxes, truth.areas, crowds, scores)


def _list_detections(truth: Truth, found: Detections, of_masks: bool) -> list[dict[str, Any]]:
    sides = np.stack([truth.widths, truth.heights] * 2, axis=1)[found.image_numbers.astype(int)]
    boxes = found.boxes.reshape(-1, 4).astype(np.float64) * sides
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    if of_masks and found.masks:
        areas = mask.area(found.masks)
    return _list_annotations(found, of_masks, boxes, areas, np.zeros(len(boxes), int), found.scores)


def _list_annotations(
    found: Truth | Detections, of_masks: bool, boxes: np.ndarray, *values: np.ndarray
) -> list[dict[str, Any]]:
    """Return COCO's annotations; its boxes are left, top, width and height, and ids begin at 1.

    ``values`` are the areas, whether each is a crowd, and the scores.
    """
    corners = np.asarray(boxes, np.float64).reshape(-1, 4)
    as_coco = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)
    names = ("image_id", "category_id", "bbox", "area", "iscrowd", "score")
    columns = (found.image_numbers, found.labels, as_coco, *values)
    rows = zip(*(np.asarray(column).tolist() for column in columns), strict=True)
    listed = [{"id": k, **dict(zip(names, row, strict=True))} for k, row in enumerate(rows, 1)]
    if of_masks:
        if found.masks is None:
            raise ValueError("there are no masks to compare")
        for annotation, code in zip(listed, found.masks, strict=True):
            annotation["segmentation"] = dict(code)
    return listed


def _average(precision: np.ndarray) -> float | None:
    known = precision[precision > -1]
    return float(known.mean()) if known.size else None
