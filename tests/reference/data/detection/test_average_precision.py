"""Average precision: cases by hand, and the same as computed by obvious loops."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from faster_coco_eval import mask

from cepheid.reference.data.detection.average_precision import (
    AveragePrecision,
    Detections,
    Mask,
    Truth,
    compute_average_precision,
)
from tests import assert_raises
from tests.reference.data.detection import plain_precision

WIDTH, HEIGHT = 200, 100


def make_truth(
    boxes: Sequence[Sequence[float]],
    labels: list[int],
    images: list[int],
    crowds: tuple[int, ...] = (),
) -> Truth:
    array = np.array(boxes, float).reshape(-1, 4)
    return Truth(
        classes=3,
        heights=np.full(4, HEIGHT),
        widths=np.full(4, WIDTH),
        image_numbers=np.array(images, int),
        labels=np.array(labels, int),
        boxes=array,
        areas=(array[:, 2] - array[:, 0]) * (array[:, 3] - array[:, 1]),
        is_crowd=np.isin(np.arange(len(array)), crowds),
    )


def detect(
    boxes: Sequence[Sequence[float]], labels: list[int], images: list[int], scores: list[float]
) -> Detections:
    """Detections at boxes in pixels."""
    shares = np.array(boxes, float).reshape(-1, 4) / [WIDTH, HEIGHT, WIDTH, HEIGHT]
    return Detections(np.array(images, int), np.array(labels, int), np.array(scores), shares)


NOTHING = detect([], [], [], [])
TWO = make_truth([[10, 10, 60, 50], [100, 20, 140, 60]], [1, 2], [0, 1])


def draw_random(seed: int, *, ties: bool = False) -> tuple[Truth, Detections]:
    """Objects of all sizes with crowds among them, and detections near many of them."""
    random = np.random.default_rng(seed)

    def draw_boxes(count: int) -> np.ndarray:
        sides = np.exp(random.uniform(np.log(4), np.log([WIDTH, HEIGHT]), size=(count, 2)))
        corner = random.uniform(0, np.array([WIDTH, HEIGHT]) - sides)
        return np.concatenate([corner, corner + sides], axis=1)

    boxes = draw_boxes(24)
    truth = make_truth(
        boxes.tolist(),
        random.integers(1, 3, size=24).tolist(),  # there is no object of the third class
        random.integers(0, 4, size=24).tolist(),
        tuple(random.choice(24, 4, replace=False).tolist()),
    )
    near = random.integers(0, 24, size=90)
    moved = boxes[near] + random.normal(size=(90, 4)) * random.choice([0.3, 3], size=(90, 1))
    moved[:, 2:] = np.maximum(moved[:, 2:], moved[:, :2] + 1)
    moved[80:] = draw_boxes(10)
    labels = np.where(random.random(90) < 0.85, truth.labels[near], random.integers(1, 4, size=90))
    scores = random.random(90)
    found = detect(
        moved.tolist(),
        labels.tolist(),
        truth.image_numbers[near].tolist(),
        (np.round(scores, 1) if ties else scores).tolist(),
    )
    return truth, found


# By hand ------------------------------------------------------------------------------------------


def test_perfect_missing_and_overlapping_detections_by_hand() -> None:
    found = detect(TWO.boxes.tolist(), [1, 2], [0, 1], [0.9, 0.3])
    result = compute_average_precision(TWO, found)
    assert (result.ap, result.ap50, result.ap75) == pytest.approx((1, 1, 1))
    assert result.by_class == pytest.approx((1, 1, None))
    # 50 × 40 and 40 × 40 pixels
    assert (result.ap_small, result.ap_medium, result.ap_large) == pytest.approx((None, 1, None))
    assert compute_average_precision(TWO, NOTHING).ap == 0
    empty = make_truth([], [], [])
    found = detect([[0, 0, 10, 10]], [1], [0], [0.5])
    none = AveragePrecision(None, None, None, None, None, None, (None, None, None))
    assert compute_average_precision(empty, found) == none
    # An overlap of two thirds counts at four of ten thresholds.
    truth = make_truth([[10, 10, 40, 40]], [1], [0])
    result = compute_average_precision(truth, detect([[10, 10, 40, 30]], [1], [0], [0.5]))
    assert result.ap == pytest.approx(0.4)
    assert (result.ap50, result.ap75) == pytest.approx((1, 0))


def test_a_wrong_class_or_image_finds_nothing_and_none_is_a_mistake() -> None:
    for label, image in ((2, 0), (1, 1)):
        found = detect([[10, 10, 60, 50]], [label], [image], [0.9])
        assert compute_average_precision(TWO, found).by_class[0] == 0
    for label, image in ((0, 0), (4, 0), (1, 4), (1, -1)):
        found = detect([[0, 0, 10, 10]], [label], [image], [0.5])
        assert_raises(ValueError, "expected", compute_average_precision, TWO, found)


def test_which_detections_of_an_object_or_a_crowd_count_as_false() -> None:
    boxes = [[10, 10, 60, 50], [70, 10, 90, 20]]
    truth = make_truth(boxes[:1], [1], [0])
    for score, expected in ((0.1, 1.0), (0.9, 0.5)):
        found = detect(boxes, [1, 1], [0, 0], [0.5, score])
        assert compute_average_precision(truth, found).ap == pytest.approx(expected)
    boxes = [[10, 10, 60, 50], [100, 10, 180, 90]]
    found = detect(
        [[100, 10, 140, 50], [140, 50, 180, 90], boxes[0]], [1, 1, 1], [0, 0, 0], [0.9, 0.8, 0.7]
    )
    crowd = make_truth(boxes, [1, 1], [0, 0], crowds=(1,))
    assert compute_average_precision(crowd, found).ap == pytest.approx(1)
    single = make_truth(boxes, [1, 1], [0, 0])
    assert compute_average_precision(single, found).ap == pytest.approx(1 / 3 * 51 / 101)
    truth = make_truth([[10, 10, 60, 50]], [1], [0])
    false = [[150.0, 60.0, 160.0, 70.0]] * 100
    found = detect(
        [*false, [10, 10, 60, 50]], [1] * 101, [0] * 101, [*np.linspace(0.9, 0.5, 100), 0.4]
    )
    assert compute_average_precision(truth, found).ap == 0
    others = replace(found, labels=np.array([2] * 100 + [1]))
    assert compute_average_precision(truth, others).ap == pytest.approx(1)


# Against loops ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_average_precision_is_that_of_loops(seed: int) -> None:
    truth, found = draw_random(seed)
    result = compute_average_precision(truth, found)
    for value, area in (
        (result.ap, (0.0, 1e10)),
        (result.ap_small, (0.0, 32.0**2)),
        (result.ap_medium, (32.0**2, 96.0**2)),
        (result.ap_large, (96.0**2, 1e10)),
    ):
        assert value == pytest.approx(plain_precision.average(truth, found, area), abs=1e-12)
    assert result.ap is not None
    assert 0.1 < result.ap < 0.9


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_the_detections_does_not_matter(seed: int) -> None:
    """Also not where scores are equal: ranks may give their detections in any order."""
    truth, found = draw_random(seed, ties=True)
    expected = compute_average_precision(truth, found)
    for order in (np.arange(90)[::-1], np.random.default_rng(seed).permutation(90)):
        assert compute_average_precision(truth, found.take(order)) == expected


# Masks --------------------------------------------------------------------------------------------


def encode(boxes: np.ndarray) -> list[Mask]:
    filled = np.zeros((HEIGHT, WIDTH, len(boxes)), np.uint8, order="F")
    for place, (left, top, right, bottom) in enumerate(boxes.astype(int)):
        filled[top:bottom, left:right, place] = 1
    codes: list[Mask] = mask.encode(filled)
    return codes


def test_masks_of_filled_boxes_have_the_precision_of_the_boxes() -> None:
    truth, found = draw_random(7)
    scale = np.array([WIDTH, HEIGHT, WIDTH, HEIGHT])
    whole = np.clip(np.rint(found.boxes * scale), 0, scale)
    whole[:, 2:] = np.maximum(whole[:, 2:], whole[:, :2] + 1)
    whole = np.minimum(whole, scale)
    true = np.rint(truth.boxes)
    areas = (true[:, 2] - true[:, 0]) * (true[:, 3] - true[:, 1])
    truth = replace(truth, boxes=true, areas=areas, masks=encode(true))
    found = replace(found, boxes=whole / scale, masks=encode(whole))
    of_boxes = compute_average_precision(truth, found)
    assert compute_average_precision(truth, found, of_masks=True) == of_boxes
    shuffled = found.take(np.random.default_rng(0).permutation(90))
    assert compute_average_precision(truth, shuffled, of_masks=True) == of_boxes


def test_masks_are_not_boxes() -> None:
    left_half = np.array([[10, 10, 35, 50]])
    truth = replace(make_truth([[10, 10, 60, 50]], [1], [0]), masks=encode(left_half))
    found = detect([[10, 10, 60, 50]], [1], [0], [0.5])
    right = replace(found, masks=encode(left_half))
    wrong = replace(found, masks=encode(np.array([[36, 10, 60, 50]])))
    assert compute_average_precision(truth, right, of_masks=True).ap == pytest.approx(1)
    assert compute_average_precision(truth, wrong, of_masks=True).ap == 0
    assert_raises(ValueError, "no masks", compute_average_precision, truth, found, of_masks=True)
