"""The truth of evaluation scenes: perfect detections have an average precision of 1."""

import numpy as np
import pytest

pytest.importorskip("faster_coco_eval", reason="comes with the extra detection")

from cepheid.reference.data import scenes
from cepheid.reference.data.detection.average_precision import compute_average_precision
from cepheid.reference.data.detection.truth import Detections
from cepheid.reference.data.scenes import SceneParameters, Scenes, encode_masks, make_truth
from cepheid.reference.data.store import Manifest


@pytest.fixture(scope="module")
def drawn() -> Scenes:
    rows = scenes.draw(SceneParameters(2, 6), range(8))
    manifest = Manifest("scenes", {}, {}, 8, 250, {}, "")
    return Scenes(
        2,
        6,
        rows["images"],
        rows["boxes"],
        rows["labels"].astype(np.int64),
        rows["signal_to_noise"],
        rows["masks"],
        manifest,
    )


def test_perfect_boxes_and_masks_are_perfect(drawn: Scenes) -> None:
    truth = make_truth(drawn, with_masks=True)
    numbers, places = np.nonzero(drawn.labels[2:])
    found = Detections(
        numbers,
        drawn.labels[2:][numbers, places],
        np.linspace(1, 0.5, len(numbers)),
        drawn.boxes[2:][numbers, places],
        encode_masks(drawn.packed_masks[2:][numbers, places], 64, 64),
    )
    for of_masks in (False, True):
        result = compute_average_precision(truth, found, of_masks=of_masks)
        assert result.ap == pytest.approx(1)
        assert result.by_class == pytest.approx((1, 1, 1))


def test_areas_are_those_of_the_masks(drawn: Scenes) -> None:
    truth = make_truth(drawn)
    masks = drawn.read_masks(np.arange(2, 8))
    expected = masks.sum(axis=(2, 3))[drawn.labels[2:] > 0]
    np.testing.assert_array_equal(truth.areas, expected)
    sides = truth.boxes[:, 2:] - truth.boxes[:, :2]
    assert np.all(truth.areas <= sides.prod(axis=1))
    np.testing.assert_allclose(truth.boxes, np.rint(truth.boxes), atol=1e-5)


def test_masks_within_boxes_are_those_of_the_pixels(drawn: Scenes) -> None:
    rows = np.arange(4)
    cropped, masks = drawn.read_mask_crops(rows, 64), drawn.read_masks(rows)
    assert drawn.read_sizes(rows).tolist() == [list(drawn.images.shape[1:3])] * 4
    for image, place in np.argwhere(drawn.labels[rows] > 0):
        box = drawn.boxes[image, place] * masks.shape[-1]
        left, top, right, bottom = np.rint(box).astype(int)
        inside = masks[image, place, top:bottom, left:right]
        down = (np.arange(64) + 0.5) * (bottom - top) // 64
        across = (np.arange(64) + 0.5) * (right - left) // 64
        expected = inside[down.astype(int)[:, None], across.astype(int)]
        assert np.array_equal(cropped[image, place], expected)
        assert inside.sum() == masks[image, place].sum()
    assert not cropped[drawn.labels[rows] == 0].any()
