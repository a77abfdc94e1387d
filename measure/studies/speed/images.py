"""What `cepheid measure speed` adds for images and videos: operations on boxes, stages, sharing.

Batched operations on boxes are compared with loops over boxes.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cepheid.benchmarks.mask_rcnn import plain as mask_rcnn
from cepheid.benchmarks.ssd import plain as ssd
from cepheid.benchmarks.ssd.task import match
from cepheid.measure.engine.turns import (
    PLAIN,
    Measure,
    Measurement,
    Sides,
    Subject,
    make_plain_task,
    time_steps,
)
from cepheid.measure.studies.speed import sharing
from cepheid.reference.torch.detection.default_boxes import compute_overlaps
from cepheid.reference.torch.detection.suppression import suppress_in_turn, suppress_overlapping
from cepheid.reference.torch.images import scale_pixels

CLASS_ROWS, CLASS_BOXES, CLASS_OVERLAP = 100, 50, 0.5  # of an image and a class each
MAP_ROWS, MAP_BOXES, MAP_OVERLAP = 32, 64, 0.7  # of an image and a map each
STAGE_STEPS = 4  # of each turn; the penalty is computed in one of four at mini scale


def compare_matching(subject: Subject) -> Measurement:
    """Compare the matching of a batch with that of one image and one box at a time."""
    task = subject.task
    (batch,) = task.data.take(task.samples, task.batch_per_rank)
    defaults = task.model.defaults
    what = f"matching of {len(batch.targets)} images to {len(defaults):,} default boxes"
    slow, fast = (partial(way, task.shape, defaults, batch.targets) for way in (ssd.match, match))
    return subject.measure(Sides(what, "box by box", slow, fast))


def compare_suppression(subject: Subject) -> Measurement:
    """Compare the suppression of overlapping boxes with a loop over boxes."""
    boxes = _draw_boxes(CLASS_ROWS, CLASS_BOXES, spread=1.0)
    is_valid = torch.ones(CLASS_ROWS, CLASS_BOXES, dtype=torch.bool)
    what = f"suppression in {CLASS_ROWS} rows of {CLASS_BOXES} boxes"
    fast = partial(suppress_overlapping, boxes, is_valid, CLASS_OVERLAP)
    return subject.measure(Sides(what, "box by box", partial(suppress_one_by_one, boxes), fast))


def suppress_one_by_one(boxes: Tensor) -> Tensor:
    """Return which boxes, corners (r, k, 4) from the best to the worst, stay, (r, k)."""
    stays = torch.ones(boxes.shape[:2], dtype=torch.bool)
    for row, candidates in enumerate(boxes):
        for at, box in enumerate(candidates):
            if stays[row, at]:
                overlaps = compute_overlaps(box[None], candidates[at + 1 :])[0]
                stays[row, at + 1 :] &= overlaps < CLASS_OVERLAP
    return stays


def compare_alignment(subject: Subject) -> Measurement:
    """Compare RoIAlign, forward and backward, with one that gathers neighbours."""
    task, network = subject.task, subject.task.model
    (batch,) = task.move(task.data.take(task.samples, task.batch_per_rank))
    with torch.no_grad():
        maps = network.extract(scale_pixels(network, batch.inputs))
    maps = [each.detach().clone().requires_grad_() for each in maps]
    boxes = _draw_boxes(len(batch.inputs), network.facts["boxes_per_image"]) * task.shape.pixels

    def run(align: Callable[..., Tensor]) -> None:
        align(network, maps, boxes, network.box_head.bins).sum().backward()

    what = f"RoIAlign of {boxes.shape[0]} × {boxes.shape[1]} boxes, forward and backward"
    slow, fast = partial(run, mask_rcnn.PlainNetwork.align), partial(run, type(network).align)
    return subject.measure(Sides(what, "neighbours gathered", slow, fast))


def compare_suppression_in_maps(subject: Subject) -> Measurement:
    """Compare the suppression of overlapping boxes with a loop over rows and boxes."""
    boxes = _draw_boxes(MAP_ROWS, MAP_BOXES)
    is_valid = torch.ones(MAP_ROWS, MAP_BOXES, dtype=torch.bool)

    def suppress_slowly() -> None:
        for row in boxes:
            mask_rcnn.suppress_one_by_one(row, MAP_OVERLAP)

    what = f"suppression in {MAP_ROWS} rows of {MAP_BOXES} boxes"
    fast = partial(suppress_in_turn, boxes, is_valid, MAP_OVERLAP)
    return subject.measure(Sides(what, "box by box", suppress_slowly, fast))


def _draw_boxes(*shape: int, spread: float = 0.7) -> Tensor:
    corners = spread * torch.rand(*shape, 2, generator=torch.Generator().manual_seed(0))
    return torch.cat((corners, corners + 0.3), dim=-1)


def compare_stage(subject: Subject, is_fading: bool) -> Measurement:
    """Compare a step in the last stage with the plain one, while it fades in or after that."""
    fading = " fading in" if is_fading else ""
    what = f"step of {subject.config.global_batch_size} clips, last stage{fading}"
    return _compare(subject, what, PLAIN, make_plain_task(subject), is_fading)


def compare_penalty(subject: Subject) -> Measurement:
    """Compare steps in the last stage, with the penalty in each, with those of the definition."""
    given = subject.config.hyperparameters
    config = replace(subject.config, hyperparameters={**given, "gan_penalty_interval_steps": 1})
    every = subject.make_task(config)
    interval = given["gan_penalty_interval_steps"]
    what = f"step with the penalty in one of {interval}"
    return _compare(subject, what, "the penalty in each step", every, False)


def _compare(subject: Subject, what: str, name: str, other: Any, is_fading: bool) -> Measurement:
    slow, fast = (partial(time_stage, task, is_fading) for task in (other, subject.task))
    return subject.measure(Sides(what, name, slow, fast, timed=True))


def time_stage(task: Any, is_fading: bool) -> float:
    """Return the mean seconds of a step in the last stage."""
    place_in_last_stage(task, is_fading)
    return time_steps(task, STAGE_STEPS)


def place_in_last_stage(task: Any, is_fading: bool) -> None:
    """Let the next step be the first one of the last stage, or the first one after it faded in."""
    task.samples = task.shape.list_starts()[0]
    if not is_fading:
        task.samples += task.shape.values.growth_fading_samples


MEASUREMENTS: Mapping[str, Mapping[str, Measure]] = {
    # With LARS, ranks share the update of resnet50 with --set opt_name=lars.
    "resnet50": {**sharing.EXCHANGE, **sharing.MODELS},
    "ssd": {
        "matching": compare_matching,
        "suppression": compare_suppression,
        **sharing.EXCHANGE,
    },
    "mask_rcnn": {
        "alignment": compare_alignment,
        "suppression": compare_suppression_in_maps,
        **sharing.MODELS,
        **sharing.EXCHANGE,
    },
    "video_prediction": {
        "last_stage": partial(compare_stage, is_fading=False),
        "fading_stage": partial(compare_stage, is_fading=True),
        "penalty": compare_penalty,
    },
}
ON_REQUEST = tuple(MEASUREMENTS["resnet50"])  # they need several ranks: start them with torchrun
