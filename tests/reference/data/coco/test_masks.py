"""Masks of COCO: polygons and run lengths become masks, and those of each object are its own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("simplejpeg", reason="needs the extra imagenet")
mask = pytest.importorskip("faster_coco_eval", reason="comes with the extra detection").mask

from cepheid.reference.data import coco
from cepheid.reference.data.coco import Photographs, masks
from cepheid.reference.data.coco.masks import RunLengths
from cepheid.reference.data.store import StoreError
from tests.reference.data.coco.replica import (
    CATEGORIES,
    CROWD,
    EVALUATION,
    PARAMETERS,
    TRAIN,
    pack,
    read_annotations,
    write_annotations,
    write_replica,
)

WITH_MASKS = replace(PARAMETERS, masks=True)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("coco")
    write_replica(root)
    pack(root, WITH_MASKS)
    return root


@pytest.fixture(scope="module")
def photographs(root: Path) -> Photographs:
    return coco.load(root / "packed")


def decode(code: Any) -> np.ndarray:
    return np.asarray(mask.decode(dict(code)))


def test_a_polygon_and_run_lengths_are_the_same_mask() -> None:
    box = [2.0, 3.0, 8.0, 3.0, 8.0, 7.0, 2.0, 7.0]
    expected = np.zeros((10, 12), np.uint8)
    expected[3:7, 2:8] = 1
    columns = expected.T.ravel()
    changes = np.flatnonzero(np.diff(columns, prepend=0)).tolist()
    counts = np.diff([0, *changes, columns.size]).tolist()
    from_polygon = masks.encode([box], 10, 12)
    from_runs = masks.encode(RunLengths((10, 12), counts), 10, 12)
    compressed = masks.encode(RunLengths((10, 12), from_runs.decode()), 10, 12)
    for code in (from_polygon, from_runs, compressed):
        assert np.array_equal(decode({"size": [10, 12], "counts": code}), expected)
    two = masks.encode([box, [9.0, 0.0, 12.0, 0.0, 12.0, 10.0, 9.0, 10.0]], 10, 12)
    expected[:, 9:] = 1
    assert np.array_equal(decode({"size": [10, 12], "counts": two}), expected)


@pytest.mark.parametrize(
    "outline",
    [
        [],
        [[1.0, 2.0, 3.0, 4.0]],
        [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]],
        RunLengths((10, 11), [110]),
        RunLengths((10, 12), [119]),
        RunLengths((10, 12), [-3, 123]),
        RunLengths((10, 12), "5"),
        RunLengths((10, 12), "zzzz~~~é"),
        [[1.0, 2.0, 3.0, 1e30, 5.0, 6.0]],
        [[1.0, 2.0, 3.0, float("nan"), 5.0, 6.0]],
    ],
)
def test_what_is_no_mask_is_refused(outline: Any) -> None:
    with pytest.raises(StoreError):
        masks.encode(outline, 10, 12)


def test_every_object_has_the_mask_of_its_outline(root: Path, photographs: Photographs) -> None:
    for part in ("train2017", "val2017"):
        content = read_annotations(root / coco.REAL, part)
        sizes = {image["id"]: (image["height"], image["width"]) for image in content["images"]}
        for number, (height, width) in sizes.items():
            rows = np.flatnonzero(photographs.image_ids == number)
            own = [each for each in content["annotations"] if each["image_id"] == number]
            if not rows.size:
                continue
            found = photographs.read_masks(int(rows[0]))
            assert len(found) == len(own)
            for code, each in zip(found, own, strict=True):
                expected = mask.segmToRle(each["segmentation"], width, height)
                assert np.array_equal(decode(code), decode(expected))


def test_training_on_masks_leaves_crowds_out(photographs: Photographs) -> None:
    rows = np.flatnonzero(photographs.image_ids == CROWD)
    _, (labels,) = photographs.read_boxes(rows)
    assert (labels > 0).sum() == 1
    assert len(photographs.read_masks(int(rows[0]))) == 2


def test_masks_within_boxes(photographs: Photographs) -> None:
    rows = np.arange(TRAIN)
    _, labels = photographs.read_boxes(rows)
    cropped = photographs.read_mask_crops(rows, 40)
    assert cropped.shape == (*labels.shape, 40, 40)
    assert not cropped[labels == 0].any()
    # The outlines of the replica are the triangle of left, right and lower left corner.
    down, across = np.indices((40, 40)) / 40
    inside = cropped[0, 0].astype(bool)
    assert labels[0, 0] > 0
    assert inside[down + across < 0.9].mean() > 0.97
    assert inside[down + across > 1.1].mean() < 0.03


def test_true_masks_are_perfect(photographs: Photographs) -> None:
    from cepheid.reference.data.detection.average_precision import compute_average_precision
    from cepheid.reference.data.detection.truth import Detections

    truth = coco.make_truth(photographs, with_masks=True)
    assert truth.masks is not None
    sides = np.stack([truth.widths, truth.heights] * 2, axis=1)[truth.image_numbers]
    found = Detections(
        truth.image_numbers,
        truth.labels,
        np.ones(len(truth.labels)),
        truth.boxes / sides,
        truth.masks,
    )
    assert compute_average_precision(truth, found, of_masks=True).ap == pytest.approx(1)
    assert truth.classes == len(CATEGORIES)
    assert len(truth.heights) == EVALUATION


def test_the_dataset_of_full_scale_keeps_its_name() -> None:
    data = {"source": "COCO2017", "train_samples": 117_266, "evaluation_samples": 5_000}
    assert coco.parameters_of(data).folder_name == "coco-122266-96aaa339"


@pytest.mark.parametrize("outline", [[[1.0, 2.0]], {"size": [1, 1], "counts": [1]}, "none"])
def test_damaged_outlines_are_told(outline: Any, tmp_path: Path) -> None:
    source = write_replica(tmp_path)
    content = read_annotations(source, "train2017")
    content["annotations"][0]["segmentation"] = outline
    write_annotations(source, "train2017", content)
    with pytest.raises(StoreError, match=r"instances_train2017\.json: an object of image \d+"):
        pack(tmp_path, WITH_MASKS)
    pack(tmp_path)  # who needs no masks does not read them
