"""Boxes, default boxes, matching, loss and suppression, against slow and obvious versions."""

import itertools
import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from cepheid.reference.torch.detection.default_boxes import (
    Level,
    Matches,
    compute_areas,
    compute_multibox_losses,
    compute_overlaps,
    decode,
    encode,
    find_hardest,
    make_default_boxes,
    match_default_boxes,
    to_centres,
    to_corners,
)
from cepheid.reference.torch.detection.suppression import (
    Detections,
    select_detections,
    suppress_overlapping,
)

# Those of SSD300 with ResNet-34: MLPerf training 0.6.
CELLS = (38, 19, 10, 5, 3, 1)
PUBLISHED: dict[str, Any] = {
    "steps": [8, 16, 32, 64, 100, 300],
    "sizes": [21, 45, 99, 153, 207, 261, 315],
    "ratios": [[2], [2, 3], [2, 3], [2, 3], [2], [2]],
}
SMALL: dict[str, Any] = {"steps": [8, 16], "sizes": [8, 16, 28], "ratios": [[2], [2]]}
select = partial(select_detections, least_score=0.05, largest_overlap=0.3)


def make_generator(seed: int) -> Any:
    return torch.Generator().manual_seed(seed)


def draw_boxes(*shape: int, seed: int) -> Tensor:
    """Corners of boxes with an area inside of the unit square, (*shape, 4)."""
    pairs = torch.rand(*shape, 2, 2, generator=make_generator(seed), dtype=torch.float64)
    low, high = pairs.aminmax(dim=-1)
    boxes: Tensor = torch.cat((0.9 * low, 0.9 * high + 0.05), dim=-1)
    return boxes


def overlap(first: Any, second: Any) -> float:
    """Intersection over union of two boxes."""
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    shared = max(0.0, width) * max(0.0, height)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (first, second)]
    return shared / (sum(areas) - shared) if shared else 0.0


def test_overlaps_are_those_of_pairs() -> None:
    first, second = draw_boxes(2, 5, seed=1), draw_boxes(2, 7, seed=2)
    expected = [
        [[overlap(a, b) for b in others] for a in boxes]
        for boxes, others in zip(first.tolist(), second.tolist(), strict=True)
    ]
    assert torch.allclose(compute_overlaps(first, second), torch.tensor(expected).double())
    empty = torch.zeros(1, 4)
    assert compute_overlaps(empty, empty).item() == 0
    assert compute_areas(torch.tensor([0.5, 0.5, 0.2, 0.9])) == 0  # corners in the wrong order


def test_forms_and_codes_can_be_undone() -> None:
    boxes, defaults = draw_boxes(6, seed=3), to_centres(draw_boxes(6, seed=4))
    assert torch.allclose(to_corners(to_centres(boxes)), boxes)
    assert torch.allclose(decode(encode(boxes, defaults), defaults), boxes)
    # A box a tenth of its default's width to the right, twice as high.
    default = torch.tensor([0.5, 0.5, 0.2, 0.2])
    box = to_corners(torch.tensor([0.52, 0.5, 0.2, 0.4]))
    assert encode(box, default).tolist() == pytest.approx([1, 0, 0, math.log(2) / 0.2], abs=1e-5)
    assert decode(torch.full((4,), 1e9), default).isfinite().all()


def test_default_boxes_are_those_of_the_published_network() -> None:
    boxes = make_default_boxes(300, Level.list_levels(PUBLISHED, CELLS))
    assert len(boxes) == 8732
    expected = []
    for at, cells in enumerate(CELLS):
        size, after = (PUBLISHED["sizes"][at + i] / 300 for i in (0, 1))
        shapes = [(size, size), (math.sqrt(size * after),) * 2]
        for ratio in PUBLISHED["ratios"][at]:
            shape = size * math.sqrt(ratio), size / math.sqrt(ratio)
            shapes += [shape, shape[::-1]]
        step = PUBLISHED["steps"][at] / 300
        for y, x, (width, height) in itertools.product(range(cells), range(cells), shapes):
            values = ((x + 0.5) * step, (y + 0.5) * step, width, height)
            expected.append([min(1.0, value) for value in values])
    assert torch.allclose(boxes, torch.tensor(expected), atol=1e-6)


def match_slowly(boxes: Any, labels: Any, defaults: Any) -> list[int]:
    """The number of the box of each default box, or -1; a box at a time."""
    corners = to_corners(defaults).tolist()
    result = []
    real = [number for number, label in enumerate(labels) if label]
    for default in corners:
        scores = {number: overlap(boxes[number], default) for number in real}
        best = max(scores, key=lambda number: scores[number], default=-1)
        result.append(best if best >= 0 and scores[best] > 0.5 else -1)
    for number in real:
        scores = {at: overlap(boxes[number], corners[at]) for at in range(len(corners))}
        result[max(scores, key=lambda at: scores[at])] = number
    return result


@pytest.mark.parametrize("seed", range(5))
def test_matching_is_that_of_one_box_at_a_time(seed: int) -> None:
    defaults = make_default_boxes(32, Level.list_levels(SMALL, (4, 2))).double()
    boxes = draw_boxes(4, 6, seed=seed)
    labels = torch.randint(0, 4, (4, 6), generator=make_generator(seed))
    labels[3] = 0  # an image without objects
    boxes[0, 1] = boxes[0, 0]  # two boxes that claim the same default box
    boxes[labels == 0] = 0
    matches = match_default_boxes(boxes, labels, defaults)
    for image in range(4):
        expected = match_slowly(boxes[image].tolist(), labels[image].tolist(), defaults)
        for at, number in enumerate(expected):
            code = torch.zeros(4).double()
            if number >= 0:
                code = encode(boxes[image, number], defaults[at])
            assert matches.labels[image, at] == (labels[image, number] if number >= 0 else 0)
            assert torch.allclose(matches.codes[image, at], code)


def test_an_image_without_objects_has_no_loss_and_others_count_three_negatives_each() -> None:
    random = make_generator(6)
    codes = 2 * torch.randn(5, 30, 4, generator=random).double()
    logits = torch.randn(5, 30, 4, generator=random).double().requires_grad_()
    labels = torch.randint(-20, 4, (5, 30), generator=random).clamp_min(0)
    labels[1], labels[2, :25] = 0, 2  # no positives; more negatives wanted than there are
    losses = compute_multibox_losses(codes, logits, Matches(labels, codes))
    assert (losses == 0).tolist() == [False, True, False, False, False]
    losses.sum().backward()
    assert logits.grad is not None
    counted = logits.grad.ne(0).any(dim=2).sum(dim=1)
    positives = (labels > 0).sum(dim=1)
    assert counted.tolist() == torch.minimum(4 * positives, torch.tensor(30)).tolist()


def test_hardest_are_the_first_of_equal_ones_and_candidates_alone() -> None:
    losses = torch.tensor([[3.0, 1.0, 1.0, 2.0, 1.0], [3.0, 1.0, 1.0, 2.0, 1.0]])
    is_candidate = torch.tensor(
        [[False, True, True, True, True], [False, True, False, False, False]]
    )
    chosen = find_hardest(losses, is_candidate, torch.tensor([2, 4]))
    assert chosen.int().tolist() == [[0, 1, 0, 1, 0], [0, 1, 0, 0, 0]]


def suppress_slowly(boxes: Any, limit: float) -> list[bool]:
    stays: list[bool] = []
    for at, box in enumerate(boxes):
        rivals = [other for other in range(at) if stays[other]]
        stays.append(all(overlap(boxes[other], box) < limit for other in rivals))
    return stays


def test_suppression_is_greedy() -> None:
    boxes = draw_boxes(6, 40, seed=7)
    boxes[0] = torch.linspace(0, 0.5, 40)[:, None] + torch.tensor([0, 0, 0.4, 0.4])  # a long chain
    is_valid = torch.arange(40) < torch.tensor([40, 40, 40, 3, 0, 20])[:, None]
    stays = suppress_overlapping(boxes, is_valid, 0.3)
    for row, count in enumerate(is_valid.sum(1).tolist()):
        expected = suppress_slowly(boxes[row, :count].tolist(), 0.3)
        assert stays[row].tolist() == expected + [False] * (40 - count)


@pytest.mark.parametrize(("most_per_class", "most"), [(200, 200), (5, 200), (200, 7)])
def test_detections_are_those_of_one_class_at_a_time(most_per_class: int, most: int) -> None:
    boxes = draw_boxes(3, 50, seed=8)
    scores = torch.rand(3, 50, 4, generator=make_generator(8), dtype=torch.float64)
    scores[..., 2] *= 0.05  # a class without detections
    scores[1] = 0  # and an image
    found = select(boxes, scores, most_per_class=most_per_class, most=most)
    expected = []
    for image in range(3):
        of_image = []
        for label in range(4):
            order = scores[image, :, label].argsort(descending=True)[:most_per_class].tolist()
            order = [at for at in order if scores[image, at, label] > 0.05]
            stays = suppress_slowly(boxes[image, order].tolist(), 0.3)
            kept = itertools.compress(order, stays)
            of_image += [(scores[image, at, label].item(), label + 1, at) for at in kept]
        expected += [(image, *each) for each in sorted(of_image, reverse=True)[:most]]
    assert found.images.tolist() == [image for image, *_ in expected]
    assert found.scores.tolist() == [score for _, score, *_ in expected]
    assert found.labels.tolist() == [label for *_, label, _ in expected]
    assert torch.equal(found.boxes, boxes[found.images, [at for *_, at in expected]])


def test_no_detections_are_detections_too() -> None:
    boxes, scores = draw_boxes(2, 5, seed=9), torch.zeros(2, 5, 3).double()
    none = select(boxes, scores, most_per_class=9, most=9)
    assert none.boxes.shape == (0, 4)
    assert Detections.join([none, none]).images.shape == (0,)
