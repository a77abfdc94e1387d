"""What `cepheid measure speed mask_rcnn` adds: RoIAlign and suppression against other forms."""

from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter

import torch
from torch import Tensor

from cepheid.benchmarks.mask_rcnn.plain import PlainNetwork, suppress_one_by_one
from cepheid.measure.engine.subject import Measure, Measurement, Subject, describe_comparison
from cepheid.measure.studies.sharing import exchange, shared_models
from cepheid.reference.torch.detection.proposals import suppress_in_turn

ROWS, BOXES = 32, 64  # of an image and a map each
LARGEST_OVERLAP = 0.7


def compare_alignment(subject: Subject) -> Measurement:
    """Compare RoIAlign, forward and backward, with one that gathers neighbours."""
    network = subject.task.model
    images, _ = subject.task.next_batch()
    with torch.no_grad():
        maps = network.extract(subject.task.scale_pixels(images))
    maps = [each.detach().clone().requires_grad_() for each in maps]
    boxes = _draw_boxes(len(images), network.facts["boxes_per_image"]) * subject.task.pixels
    bins = network.box_head.bins

    def run(align: Callable[..., Tensor]) -> None:
        align(network, maps, boxes, bins).sum().backward()

    compared = subject.compare(
        f"RoIAlign of {boxes.shape[0]} × {boxes.shape[1]} boxes, forward and backward",
        "neighbours gathered",
        partial(_time, partial(run, PlainNetwork.align)),
        partial(_time, partial(run, type(network).align)),
    )
    return Measurement([describe_comparison(compared)], compared.as_json())


def compare_suppression(subject: Subject) -> Measurement:
    """Compare the suppression of overlapping boxes with a loop over rows and boxes."""
    boxes = _draw_boxes(ROWS, BOXES)
    is_valid = torch.ones(ROWS, BOXES, dtype=torch.bool)
    compared = subject.compare(
        f"suppression in {ROWS} rows of {BOXES} boxes",
        "box by box",
        partial(_time, lambda: [suppress_one_by_one(row, LARGEST_OVERLAP) for row in boxes]),
        partial(_time, partial(suppress_in_turn, boxes, is_valid, LARGEST_OVERLAP)),
    )
    return Measurement([describe_comparison(compared)], compared.as_json())


def _draw_boxes(*shape: int) -> Tensor:
    corners = 0.7 * torch.rand(*shape, 2, generator=torch.Generator().manual_seed(0))
    return torch.cat((corners, corners + 0.3), dim=-1)


def _time(work: Callable[[], object]) -> float:
    start = perf_counter()
    work()
    return perf_counter() - start


MEASUREMENTS: Mapping[str, Measure] = {
    "alignment": compare_alignment,
    "suppression": compare_suppression,
    "shared": shared_models.compare_shared_models,
    **exchange.MEASUREMENTS,
}
ON_REQUEST = ("shared", *exchange.MEASUREMENTS)  # they need several ranks: start them with torchrun
