"""COCO's average precision as one writes it first, in loops: what the fast one must equal."""

import numpy as np

from cepheid.reference.data.detection.average_precision import Detections, Truth

THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0, 1, 101)


def compute_overlap(found: np.ndarray, true: np.ndarray, is_crowd: bool) -> float:
    """Intersection over union; of a crowd, the share of the detection that lies in it."""
    across = min(found[2], true[2]) - max(found[0], true[0])
    down = min(found[3], true[3]) - max(found[1], true[1])
    common = max(across, 0.0) * max(down, 0.0)
    own = (found[2] - found[0]) * (found[3] - found[1])
    other = (true[2] - true[0]) * (true[3] - true[1])
    return float(common / (own if is_crowd else own + other - common))


def compute_precision(
    truth: Truth, detections: Detections, label: int, threshold: float, area: tuple[float, float]
) -> float | None:
    """Average precision of one class at one threshold, for objects whose area is in a range."""
    hits: list[tuple[float, bool]] = []
    objects = 0
    order = np.argsort(-detections.scores, kind="stable")
    for image, (height, width) in enumerate(zip(truth.heights, truth.widths, strict=True)):
        true = np.flatnonzero((truth.image_numbers == image) & (truth.labels == label))
        is_ignored = {
            int(t): bool(truth.is_crowd[t]) or not area[0] <= truth.areas[t] <= area[1]
            for t in true
        }
        objects += sum(not ignored for ignored in is_ignored.values())
        taken: set[int] = set()
        mine = [
            d
            for d in order
            if detections.image_numbers[d] == image and detections.labels[d] == label
        ]
        for d in mine[:100]:
            box = detections.boxes[d] * [width, height, width, height]
            best, best_overlap = None, threshold
            # First those that count, then those that are ignored.
            for t in sorted(is_ignored, key=lambda t: (is_ignored[t], t)):
                if t in taken and not truth.is_crowd[t]:
                    continue
                if best is not None and not is_ignored[best] and is_ignored[t]:
                    break
                overlap = compute_overlap(box, truth.boxes[t], bool(truth.is_crowd[t]))
                if overlap >= best_overlap:
                    best, best_overlap = t, overlap
            size = (box[2] - box[0]) * (box[3] - box[1])
            if best is not None:
                taken.add(best)
                if not is_ignored[best]:
                    hits.append((float(detections.scores[d]), True))
            elif area[0] <= size <= area[1]:
                hits.append((float(detections.scores[d]), False))
    if objects == 0:
        return None
    hits.sort(key=lambda hit: -hit[0])
    right = np.cumsum([hit for _, hit in hits])
    recall = right / objects
    precision = right / np.arange(1, len(hits) + 1)
    return float(np.mean([max(precision[recall >= r], default=0.0) for r in RECALLS]))


def average(truth: Truth, detections: Detections, area: tuple[float, float]) -> float | None:
    """Average over classes and thresholds."""
    found = [
        compute_precision(truth, detections, label, threshold, area)
        for label in range(1, truth.classes + 1)
        for threshold in THRESHOLDS
    ]
    known = [value for value in found if value is not None]
    return float(np.mean(known)) if known else None
