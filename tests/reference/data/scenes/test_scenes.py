"""Drawn scenes: their truth, their noise, and datasets of them."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from cepheid.reference.data import scenes, store
from cepheid.reference.data.detection.average_precision import Detections, compute_average_precision
from cepheid.reference.data.scenes import SceneParameters, Scenes, encode_masks, make_truth, objects

PARAMETERS = SceneParameters(train_samples=12, evaluation_samples=4)
SIDE = PARAMETERS.pixels


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "scenes"
    scenes.prepare(folder, PARAMETERS, processes=1)
    return folder


@pytest.fixture(scope="module")
def drawn(prepared: Path) -> dict[str, np.memmap]:
    return store.open_arrays(prepared)


@pytest.fixture(scope="module")
def loaded(prepared: Path) -> Scenes:
    return scenes.load(prepared)


def unpack(packed: np.ndarray) -> np.ndarray:
    return np.unpackbits(packed, axis=-1, count=SIDE * SIDE).reshape(-1, SIDE, SIDE).astype(bool)


# Drawing ------------------------------------------------------------------------------------------


def test_a_scene_is_a_function_of_seed_and_number(drawn: dict[str, np.memmap]) -> None:
    for name, values in scenes.draw(PARAMETERS, range(7, 9)).items():
        np.testing.assert_array_equal(values, drawn[name][7:9])
    other = scenes.draw(replace(PARAMETERS, seed=1), range(1))
    assert not np.array_equal(other["boxes"][0], drawn["boxes"][0])


def test_a_box_is_the_smallest_one_round_its_mask(drawn: dict[str, np.memmap]) -> None:
    for boxes, labels, packed in zip(drawn["boxes"], drawn["labels"], drawn["masks"], strict=True):
        for box, label, mask in zip(boxes, labels, unpack(packed), strict=True):
            if label == 0:
                assert not box.any()
                assert not mask.any()
                continue
            y, x = np.nonzero(mask)
            assert len(x) >= scenes.SMALLEST_PIXELS
            expected = np.array([x.min(), y.min(), x.max() + 1, y.max() + 1]) / SIDE
            np.testing.assert_allclose(box, expected)


def test_masks_never_overlap_and_labels_come_first(drawn: dict[str, np.memmap]) -> None:
    for labels, packed in zip(drawn["labels"], drawn["masks"], strict=True):
        assert unpack(packed).sum(axis=0).max() == 1
        count = np.count_nonzero(labels)
        assert count >= 2
        assert labels[:count].all()
    assert set(np.unique(drawn["labels"])) == {0, 1, 2, 3}
    assert drawn["images"].max() < 255  # nothing is saturated


def test_the_light_is_in_the_masks_and_the_rest_is_noise(drawn: dict[str, np.memmap]) -> None:
    inside = np.stack([unpack(packed).any(axis=0) for packed in drawn["masks"]])
    images = scenes.compute_sky_noises(drawn["images"])
    assert images[inside].mean() > 2
    assert abs(images[~inside].mean()) < 0.3  # what is below the threshold
    assert images[~inside].std() == pytest.approx(1, abs=0.1)


def test_visible_pixels_are_those_where_an_object_is_the_brightest() -> None:
    signals = np.zeros((3, 3, 8, 16))
    signals[0, :, :, :9] = 2.0
    signals[1, :, :, 6:] = 3.0
    signals[1, :, :, 14:] = 0.5  # of all bands together 0.87 of the noise
    signals[2, :, 2:4, 2:4] = 5.0  # too small to count
    first, second, third = scenes.find_visible_pixels(signals)
    expected = np.zeros((8, 16), bool)
    expected[:, :6] = True
    expected[2:4, 2:4] = False
    np.testing.assert_array_equal(first, expected)
    assert second[:, 6:14].all()
    assert second.sum() == 8 * 8
    assert not third.any()
    np.testing.assert_array_equal(scenes.find_box(second), [6, 0, 14, 8])


def test_an_object_has_its_signal_to_noise_ratio_and_levels_are_finer() -> None:
    for found in objects.draw_objects(np.random.default_rng(3), PARAMETERS.sky, 5, 5):
        signal = objects.compute_signal(PARAMETERS.sky, found)
        assert np.sqrt(np.sum(signal**2)) == pytest.approx(found.signal_to_noise)
        x, y = np.array(found.centre_pixels) + SIDE / 2
        assert signal[:, int(y), int(x)].sum() > 0.3 * signal.sum(axis=0).max()
    levels = np.arange(256)
    noises = scenes.compute_sky_noises(levels)
    middle = levels[(noises > -2) & (noises < 2)]
    assert np.diff(noises[middle]).max() < 0.1
    assert noises[0] < -7
    assert noises[-1] > 80


def test_a_lens_lies_at_the_centre_of_the_circle_of_its_arc() -> None:
    random = np.random.default_rng(0)
    scene = [each for _ in range(40) for each in objects.draw_objects(random, PARAMETERS.sky, 8, 8)]
    distances = [
        np.linalg.norm(arc.parts[0].offsets_pixels - lens.parts[0].offsets_pixels, axis=1)
        for arc, lens in pairwise(scene)
        if (arc.label, lens.label) == (objects.ARC, objects.SPHEROID)
    ]
    concentric = [each for each in distances if np.ptp(each) < 1e-6]
    assert len(concentric) >= 10
    longest = objects.ARC_RADIUS_ARCSEC[1] / PARAMETERS.sky.pixel_scale_arcsec
    assert max(each[0] for each in concentric) <= longest + 1e-6


# Datasets -----------------------------------------------------------------------------------------


def test_a_dataset_has_what_was_drawn_and_areas_of_the_masks(
    loaded: Scenes, drawn: dict[str, np.memmap]
) -> None:
    assert (loaded.train_samples, loaded.evaluation_samples) == (12, 4)
    np.testing.assert_array_equal(loaded.images, drawn["images"])
    np.testing.assert_array_equal(loaded.boxes, drawn["boxes"])
    np.testing.assert_array_equal(loaded.labels, drawn["labels"])
    masks = loaded.read_masks(np.array([5, 2]))
    np.testing.assert_array_equal(masks[1], unpack(drawn["masks"][2]))
    truth = make_truth(loaded)
    expected = loaded.read_masks(np.arange(12, 16)).sum(axis=(2, 3))[loaded.labels[12:] > 0]
    np.testing.assert_array_equal(truth.areas, expected)
    sides = truth.boxes[:, 2:] - truth.boxes[:, :2]
    assert np.all(truth.areas <= sides.prod(axis=1))
    np.testing.assert_allclose(truth.boxes, np.rint(truth.boxes), atol=1e-5)


def test_perfect_boxes_and_masks_are_perfect(loaded: Scenes) -> None:
    truth = make_truth(loaded, with_masks=True)
    labels, boxes, packed = (x[12:] for x in (loaded.labels, loaded.boxes, loaded.packed_masks))
    at = numbers, _ = np.nonzero(labels)
    scores, masks = np.linspace(1, 0.5, len(numbers)), encode_masks(packed[at], SIDE, SIDE)
    found = Detections(numbers, labels[at], scores, boxes[at], masks)
    for of_masks in (False, True):
        result = compute_average_precision(truth, found, of_masks=of_masks)
        assert result.ap == pytest.approx(1)
        assert result.by_class == pytest.approx((1, 1, 1))


def test_masks_within_boxes_are_those_of_the_pixels(loaded: Scenes) -> None:
    rows = np.arange(4)
    cropped, masks = loaded.read_mask_crops(rows, 64), loaded.read_masks(rows)
    assert loaded.read_sizes(rows).tolist() == [list(loaded.images.shape[1:3])] * 4
    for image, place in np.argwhere(loaded.labels[rows] > 0):
        box = loaded.boxes[image, place] * masks.shape[-1]
        left, top, right, bottom = np.rint(box).astype(int)
        inside = masks[image, place, top:bottom, left:right]
        down = (np.arange(64) + 0.5) * (bottom - top) // 64
        across = (np.arange(64) + 0.5) * (right - left) // 64
        expected = inside[down.astype(int)[:, None], across.astype(int)]
        assert np.array_equal(cropped[image, place], expected)
        assert inside.sum() == masks[image, place].sum()
    assert not cropped[loaded.labels[rows] == 0].any()
