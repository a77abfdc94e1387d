"""What `cepheid measure speed ssd` adds: matching and suppression against loops over boxes."""

from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter

import torch
from torch import Tensor

from cepheid.benchmarks.ssd.plain import PlainDetection
from cepheid.measure.engine.subject import Measure, Measurement, Subject, describe_comparison
from cepheid.measure.studies.sharing import exchange
from cepheid.reference.torch.detection.boxes import compute_overlaps
from cepheid.reference.torch.detection.suppression import suppress_overlapping

ROWS, BOXES = 100, 50  # of an image and a class each
LARGEST_OVERLAP = 0.5


def compare_matching(subject: Subject) -> Measurement:
    """Compare the matching of a batch with that of one image and one box at a time."""
    task = subject.task
    _, targets = task.next_batch()
    compared = subject.compare(
        f"matching of {len(targets)} images to {len(task.defaults):,} default boxes",
        "box by box",
        partial(_time, partial(PlainDetection.match, task, targets)),
        partial(_time, partial(task.match, targets)),
    )
    return Measurement([describe_comparison(compared)], compared.as_json())


def compare_suppression(subject: Subject) -> Measurement:
    """Compare the suppression of overlapping boxes with a loop over boxes."""
    random = torch.Generator().manual_seed(0)
    corners = torch.rand(ROWS, BOXES, 2, generator=random)
    boxes = torch.cat((corners, corners + 0.3), dim=2)
    is_valid = torch.ones(ROWS, BOXES, dtype=torch.bool)
    compared = subject.compare(
        f"suppression in {ROWS} rows of {BOXES} boxes",
        "box by box",
        partial(_time, partial(suppress_one_by_one, boxes)),
        partial(_time, partial(suppress_overlapping, boxes, is_valid, LARGEST_OVERLAP)),
    )
    return Measurement([describe_comparison(compared)], compared.as_json())


def suppress_one_by_one(boxes: Tensor) -> Tensor:
    """Return which boxes, corners (r, k, 4) from the best to the worst, stay, (r, k)."""
    stays = torch.ones(boxes.shape[:2], dtype=torch.bool)
    for row, candidates in enumerate(boxes):
        for at, box in enumerate(candidates):
            if stays[row, at]:
                overlaps = compute_overlaps(box[None], candidates[at + 1 :])[0]
                stays[row, at + 1 :] &= overlaps < LARGEST_OVERLAP
    return stays


def _time(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


MEASUREMENTS: Mapping[str, Measure] = {
    "matching": compare_matching,
    "suppression": compare_suppression,
    **exchange.MEASUREMENTS,
}
ON_REQUEST = tuple(exchange.MEASUREMENTS)  # they need several ranks: start them with torchrun
