"""Packing COCO: what its oddities and its masks become, and what stands in the way."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

mask = pytest.importorskip("faster_coco_eval", reason="comes with the extra detection").mask

from cepheid.reference.data import coco, verification
from cepheid.reference.data.coco import CocoParameters, Photographs, masks
from cepheid.reference.data.coco.masks import RunLengths
from cepheid.reference.data.detection import average_precision
from cepheid.reference.data.store import StoreError
from tests import assert_raises
from tests.reference.data.coco.replica import (
    BEYOND,
    CATEGORIES,
    CROWD,
    EVALUATION,
    LEFT_OUT,
    NO_AREA,
    PARAMETERS,
    TRAIN,
    pack,
    read_annotations,
    write_annotations,
    write_replica,
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("coco")
    write_replica(root)
    pack(root)
    return root


@pytest.fixture(scope="module")
def photographs(root: Path) -> Photographs:
    return coco.load(root / "packed")


def read_objects(photographs: Photographs, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Boxes in pixels and labels of the image with COCO's id ``number``."""
    rows = np.flatnonzero(photographs.image_ids == number)
    (boxes,), (labels,) = photographs.read_boxes(rows)
    assert not boxes[labels == 0].any()
    sides = [photographs.widths[rows[0]], photographs.heights[rows[0]]] * 2
    return boxes[labels > 0] * sides, labels[labels > 0]


# What is packed -----------------------------------------------------------------------------------


def test_packed_files_are_the_files(root: Path, photographs: Photographs) -> None:
    assert (photographs.train_samples, photographs.evaluation_samples) == (TRAIN, EVALUATION)
    for row, number in enumerate(photographs.image_ids):
        part = "train2017" if row < TRAIN else "val2017"
        path = root / coco.REAL / part / f"{number:012}.jpg"
        assert bytes(photographs.files.read(row)) == path.read_bytes()
        height, width = photographs.heights[row], photographs.widths[row]
        assert photographs.read_image(row).shape == (height, width, 3)
    assert verification.verify(root / "packed") == photographs.manifest


def test_images_without_objects_and_oddities_are_treated_as_the_reference_does(
    root: Path, photographs: Photographs
) -> None:
    with_objects = [number for number in range(TRAIN + LEFT_OUT) if number % 5]
    assert sorted(photographs.image_ids[:TRAIN]) == with_objects
    assert sorted(photographs.image_ids[TRAIN:]) == list(range(500, 500 + EVALUATION))
    assert read_objects(photographs, 500)[1].size == 0
    grey, told = coco.remarks(root / "packed")
    assert grey.startswith("unusual images, which are used: 1 grey")
    assert "1 of them of crowds, which are trained; left out are 3 images of which nothing" in told
    assert told.endswith("and 1 boxes without area")
    assert len(read_objects(photographs, CROWD)[1]) == 2  # the crowd is among them
    assert len(read_objects(photographs, NO_AREA)[1]) == 2  # of three
    boxes, _ = read_objects(photographs, BEYOND)
    width = photographs.widths[photographs.image_ids == BEYOND]
    assert boxes[:, 2].max() == pytest.approx(width + 0.01, abs=1e-4)


def test_boxes_and_labels_are_those_of_the_annotations(
    root: Path, photographs: Photographs
) -> None:
    label_of = {category: label for label, category in enumerate(CATEGORIES, start=1)}
    assert photographs.class_names == tuple(CATEGORIES.values())
    for part in ("train2017", "val2017"):
        objects = read_annotations(root / coco.REAL, part)["annotations"]
        for number in {each["image_id"] for each in objects}:
            own = [each for each in objects if each["image_id"] == number and each["bbox"][3] > 0]
            boxes, labels = read_objects(photographs, number)
            np.testing.assert_array_equal(labels, [label_of[each["category_id"]] for each in own])
            left, top, width, height = np.transpose([each["bbox"] for each in own])
            expected = np.stack([left, top, left + width, top + height], axis=1)
            np.testing.assert_allclose(boxes, expected, atol=1e-4)


def test_truth_knows_crowds(tmp_path: Path) -> None:
    source = write_replica(tmp_path)
    change(source, "val2017", lambda content: content["annotations"][1].update(iscrowd=1))
    truth = coco.make_truth(coco.load(pack(tmp_path)))
    assert np.count_nonzero(truth.is_crowd) == 1


# What stands in the way ---------------------------------------------------------------------------


Change = Callable[[dict[str, Any]], object]


def change(source: Path, part: str, make_other: Change) -> None:
    """Change the annotations of a part of the set."""
    content = read_annotations(source, part)
    make_other(content)
    write_annotations(source, part, content)


def rename(name: str) -> Change:
    return lambda content: content["images"][0].update(file_name=name)


def lose_an_image(content: dict[str, Any]) -> None:
    """Its objects go too."""
    lost = content["images"].pop()["id"]
    content["annotations"] = [a for a in content["annotations"] if a["image_id"] != lost]


@pytest.mark.parametrize(
    ("make_other", "message"),
    [
        (lambda content: content["annotations"][3].pop("bbox"), "missing required field `bbox`"),
        (lambda content: content["annotations"][0].update(bbox=[1, 2, 3]), "length 4"),
        (lambda content: content["annotations"][0].update(image_id=77), "image 77 and category"),
        (lambda content: content["annotations"][0].update(category_id=4), "and category 4, of"),
        (lambda content: content["images"].append(content["images"][0]), "listed twice"),
        (lambda content: content["categories"].pop(), "are not those of training"),
        (lambda content: content["categories"][0].update(name="persons"), "not those of training"),
        (lambda content: content["images"][0].update(width=33), "the annotations say .* × 33"),
        (lambda content: content["images"][0].update(height=0), "of 0 ×"),
        (lose_an_image, "3 images, expected 4"),
        (rename("../train2017/000000000001.jpg"), "expected the name of a file"),
        (rename(".."), "expected the name of a file"),
        (rename(""), "expected the name of a file"),
        (rename("a\0b"), "expected the name of a file"),
        (rename("other.jpg"), r"other\.jpg: cannot be read \(No such file"),
    ],
)
def test_annotations_that_contradict(tmp_path: Path, make_other: Change, message: str) -> None:
    change(write_replica(tmp_path), "val2017", make_other)
    assert_raises(StoreError, message, pack, tmp_path)


def test_other_counts_broken_annotations_and_damaged_images_are_told(tmp_path: Path) -> None:
    source = write_replica(tmp_path)
    with pytest.raises(StoreError, match=r"9 images with objects, expected 117,266\. Unpack"):
        pack(tmp_path, CocoParameters(117_266, 5000))
    damaged = source / "train2017/000000000003.jpg"
    damaged.write_bytes(damaged.read_bytes()[:400])
    assert_raises(StoreError, r"1 of 13 images cannot be decoded(.|\n)*0003\.jpg", pack, tmp_path)
    (source / "annotations/instances_val2017.json").write_text("{")
    assert_raises(StoreError, "is not a file of COCO's annotations", pack, tmp_path)


# Masks --------------------------------------------------------------------------------------------


WITH_MASKS = replace(PARAMETERS, masks=True)


@pytest.fixture(scope="module")
def masked(root: Path) -> Photographs:
    coco.prepare(root / "masked", WITH_MASKS, processes=1)
    return coco.load(root / "masked")


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
def test_a_broken_outline_is_refused(outline: Any) -> None:
    with pytest.raises(StoreError):
        masks.encode(outline, 10, 12)


def test_every_object_has_the_mask_of_its_outline(root: Path, masked: Photographs) -> None:
    for part in ("train2017", "val2017"):
        content = read_annotations(root / coco.REAL, part)
        sizes = {image["id"]: (image["height"], image["width"]) for image in content["images"]}
        for number, (height, width) in sizes.items():
            rows = np.flatnonzero(masked.image_ids == number)
            own = [each for each in content["annotations"] if each["image_id"] == number]
            if not rows.size:
                continue
            found = masked.read_masks(int(rows[0]))
            assert len(found) == len(own)
            for code, each in zip(found, own, strict=True):
                expected = mask.segmToRle(each["segmentation"], width, height)
                assert np.array_equal(decode(code), decode(expected))


def test_masks_within_boxes(masked: Photographs) -> None:
    rows = np.arange(TRAIN)
    _, labels = masked.read_boxes(rows)
    cropped = masked.read_mask_crops(rows, 40)
    assert cropped.shape == (*labels.shape, 40, 40)
    assert not cropped[labels == 0].any()
    (crowd,) = np.flatnonzero(masked.image_ids == CROWD)
    assert (labels[crowd] > 0).sum() == 1  # whose mask is left out
    assert len(masked.read_masks(int(crowd))) == 2
    # The outlines of the replica are the triangle of left, right and lower left corner.
    down, across = np.indices((40, 40)) / 40
    inside = cropped[0, 0].astype(bool)
    assert labels[0, 0] > 0
    assert inside[down + across < 0.9].mean() > 0.97
    assert inside[down + across > 1.1].mean() < 0.03


def test_true_boxes_and_masks_are_perfect(masked: Photographs) -> None:
    truth = coco.make_truth(masked, with_masks=True)
    boxes, labels = masked.read_boxes(TRAIN + np.arange(EVALUATION))
    numbers, places = np.nonzero(labels)
    scores = np.ones(len(numbers))
    own = labels[numbers, places], scores, boxes[numbers, places]
    found = average_precision.Detections(numbers, *own, truth.masks)
    for of_masks in (False, True):
        result = average_precision.compute_average_precision(truth, found, of_masks=of_masks)
        assert result.ap == pytest.approx(1)
    np.testing.assert_array_equal(truth.image_numbers, np.sort(numbers))
    areas = (truth.boxes[:, 2:] - truth.boxes[:, :2]).prod(axis=1)
    np.testing.assert_allclose(truth.areas, 0.7 * areas)
    assert truth.classes == len(CATEGORIES)
    assert len(truth.heights) == EVALUATION


def test_the_dataset_of_full_scale_keeps_its_name() -> None:
    data = {"source": "COCO2017", "train_samples": 117_266, "evaluation_samples": 5_000}
    assert coco.parameters_of(data).folder_name == "coco-122266-96aaa339"


@pytest.mark.parametrize("outline", [[[1.0, 2.0]], {"size": [1, 1], "counts": [1]}, "none"])
def test_damaged_outlines_are_told(outline: Any, tmp_path: Path) -> None:
    other = {"segmentation": outline}
    source = write_replica(tmp_path)
    change(source, "train2017", lambda content: content["annotations"][0].update(other))
    with pytest.raises(StoreError, match=r"instances_train2017\.json: an object of image \d+"):
        pack(tmp_path, WITH_MASKS)
    pack(tmp_path)  # who needs no masks does not read them
