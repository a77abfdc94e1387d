"""Finding ImageNet's files, and saying what is missing."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cepheid.reference.data.imagenet import layout as imagenet_layout
from cepheid.reference.data.imagenet.layout import Listing
from cepheid.reference.data.store import StoreError
from tests.reference.data.pictures import CLASSES, EVALUATION, TRAIN, flatten, write_set


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_set(tmp_path)


def list_source(source: Path) -> Listing:
    return imagenet_layout.list_files(source, len(CLASSES), TRAIN, EVALUATION)


def test_lists_training_then_validation_in_the_order_of_classes(source: Path) -> None:
    found = list_source(source)
    assert found.classes == CLASSES
    assert found.names[:5] == (
        "train/n01/train_000.JPEG", "train/n01/train_003.JPEG", "train/n01/train_006.JPEG",
        "train/n01/train_009.JPEG", "train/n02/train_001.JPEG",
    )  # fmt: skip
    assert found.names[TRAIN] == "val/n01/val_012.JPEG"
    assert found.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [0, 0, 1, 1, 2, 2]
    sizes = [(source / name).stat().st_size for name in found.names]
    assert found.sizes_bytes.tolist() == sizes


# Validation images in one folder ------------------------------------------------------------------


def kaggle(source: Path, truth: list[tuple[str, str]]) -> None:
    lines = [f"{name.removesuffix('.JPEG')},{folder} 1 2 3 4 " for name, folder in truth]
    (source / "LOC_val_solution.csv").write_text("\n".join(["ImageId,PredictionString", *lines]))


def caffe(source: Path, truth: list[tuple[str, str]]) -> None:
    lines = [f"{name} {CLASSES.index(folder)}" for name, folder in truth]
    (source / "val.txt").write_text("\n".join(lines))


def tensorflow(source: Path, truth: list[tuple[str, str]]) -> None:
    path = source / "imagenet_2012_validation_synset_labels.txt"
    path.write_text("".join(f"{folder}\n" for _, folder in truth))


def devkit(source: Path, truth: list[tuple[str, str]]) -> None:
    from scipy.io import savemat

    folder = source / "ILSVRC2012_devkit_t12" / "data"
    folder.mkdir(parents=True)
    numbers = {"n02": 1, "n03": 2, "n01": 3}  # in no order, as those of the real one
    synsets = np.array(
        [(number, name) for name, number in numbers.items()],
        dtype=[("ILSVRC2012_ID", object), ("WNID", object)],
    )
    savemat(folder / "meta.mat", {"synsets": synsets.reshape(-1, 1)})
    path = folder / "ILSVRC2012_validation_ground_truth.txt"
    path.write_text("".join(f"{numbers[name]}\n" for _, name in truth))


@pytest.mark.parametrize("write_list", [kaggle, caffe, tensorflow, devkit])
def test_flat_validation_images_get_their_classes_from_a_list(
    source: Path, write_list: Callable[[Path, list[tuple[str, str]]], None]
) -> None:
    truth = flatten(source)
    write_list(source, truth)
    found = list_source(source)
    ordered = sorted(truth, key=lambda one: (one[1], one[0]))
    assert found.names[TRAIN:] == tuple(f"val/{folder}/{name}" for name, folder in ordered)
    assert found.places[TRAIN:] == tuple(f"val/{name}" for name, _ in ordered)
    assert [CLASSES[label] for label in found.labels[TRAIN:]] == [folder for _, folder in ordered]


def test_flat_validation_images_without_a_list(source: Path) -> None:
    flatten(source)
    with pytest.raises(StoreError, match=r"no list says of which class .*LOC_val_solution\.csv"):
        list_source(source)


@pytest.mark.parametrize(
    "text", ["", "val_012.JPEG 0", "val_012.JPEG 7\n" * 6, "nonsense", "val_012.JPEG -1\n" * 6]
)
def test_a_list_without_a_class_for_each_image_is_refused(source: Path, text: str) -> None:
    flatten(source)
    (source / "val.txt").write_text(text)
    with pytest.raises(StoreError, match=r"val\.txt: does not give the class of each image"):
        list_source(source)


# What is missing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda source: shutil.rmtree(source), r"train: there is no such folder\. Put ImageNet"),
        (lambda source: shutil.rmtree(source / "val"), r"val: there is no such folder"),
        (
            lambda source: shutil.rmtree(source / "train/n02"),
            r"train: 2 class folders with images, expected 3\. Unpack",
        ),
        (
            lambda source: [path.unlink() for path in (source / "train/n02").iterdir()],
            r"2 class folders with images, expected 3; without images: n02",
        ),
        (
            lambda source: (source / "train/n02.tar").touch(),
            r"train: 1 archive \(n02\.tar\) is not unpacked",
        ),
        (
            lambda source: (source / "train/n03/train_005.JPEG").unlink(),
            r"train: 11 images, expected 12\. The folders with fewest are n03 with 3, n01 with 4",
        ),
        (
            lambda source: shutil.rmtree(source / "val/n01"),
            r"val: has no class folder n01, which train has",
        ),
        (lambda source: (source / "val/n04").mkdir(), r"val: has a class folder n04, which train"),
        (
            lambda source: (source / "val/n01/val_012.JPEG").unlink(),
            r"val: 5 images, expected 6",
        ),
        (
            lambda source: (source / "val/n01/val_012.JPEG").rename(source / "val/val_012.JPEG"),
            r"class folders and images beside them \(val_012\.JPEG\)",
        ),
        (
            lambda source: (source / "val/n01/val_012.JPEG").write_bytes(b""),
            r"1 file \(val/n01/val_012\.JPEG\) is empty",
        ),
    ],
)
def test_an_incomplete_set_is_refused(
    source: Path, damage: Callable[[Path], object], message: str
) -> None:
    damage(source)
    with pytest.raises(StoreError, match=message):
        list_source(source)


def test_hidden_files_and_others_are_passed_over(source: Path) -> None:
    expected = list_source(source)
    (source / "train/n01/.train_000.JPEG.123").touch()
    (source / "train/n01/README.txt").touch()
    (source / "train/.cache").mkdir()
    assert list_source(source).names == expected.names
