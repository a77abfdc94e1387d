"""ImageNet's files are found and packed; what is missing, damaged or in the way is told."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from cepheid.reference.data import imagenet, preparation, verification
from cepheid.reference.data.image_files import decoding, drawn, packing
from cepheid.reference.data.image_files.decoding import KINDS
from cepheid.reference.data.imagenet import layout as imagenet_layout
from cepheid.reference.data.imagenet.layout import Listing
from cepheid.reference.data.store import StoreError
from tests import assert_raises
from tests.reference.data.pictures import (
    CLASSES,
    DRAWN,
    EVALUATION,
    TRAIN,
    flatten,
    jpeg,
    pack,
    write_set,
)  # fmt: skip


def test_packed_files_are_the_files(source: Path, tmp_path: Path) -> None:
    folder = pack(tmp_path)
    images = imagenet.load(folder)
    names = sorted(source.glob("train/*/*")) + sorted(source.glob("val/*/*"))
    assert len(images.labels) == len(names) == TRAIN + EVALUATION
    for row, path in enumerate(names):
        assert bytes(images.files.read(row)) == path.read_bytes()
        assert images.classes[images.labels[row]] == path.parent.name
    assert images.classes == CLASSES
    assert (images.train_samples, images.evaluation_samples) == (TRAIN, EVALUATION)
    assert verification.verify(folder) == images.manifest
    assert imagenet.DATASET.remark(folder) == []


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_set(tmp_path)


def test_files_may_be_anywhere_behind_a_link(tmp_path: Path) -> None:
    write_set(tmp_path / "archive")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / imagenet.REAL).symlink_to(tmp_path / "archive" / imagenet.REAL)
    assert imagenet.load(pack(tmp_path / "data")).train_samples == TRAIN


# Unusual and damaged images -----------------------------------------------------------------------


def test_unusual_images_are_named_and_counted(source: Path, tmp_path: Path) -> None:
    unusual = {
        "grey": ("train/n01/train_000.JPEG", jpeg(0, "L")),
        "cmyk": ("train/n02/train_001.JPEG", jpeg(1, "CMYK")),
        "other": ("val/n01/val_012.JPEG", jpeg(2, format="PNG")),
    }
    for name, content in unusual.values():
        (source / name).write_bytes(content)
    folder = pack(tmp_path)
    (told,) = imagenet.DATASET.remark(folder)
    assert told.startswith("unusual images, which are used: 1 grey; 1 CMYK; 1 no JPEG")
    assert str(folder / packing.REMARKS) in told
    lines = (folder / packing.REMARKS).read_text().splitlines()
    assert lines == [f"{kind}\t{name}" for kind, (name, _) in unusual.items()]
    kinds = imagenet.load(folder).files.kinds
    assert [KINDS[code] for code in kinds[[0, 4, TRAIN]]] == ["grey", "cmyk", "other"]


def test_damaged_images_are_all_named_and_nothing_is_left(source: Path, tmp_path: Path) -> None:
    whole = {}
    for name in ("train/n01/train_003.JPEG", "val/n03/val_014.JPEG"):
        whole[name] = (source / name).read_bytes()
        (source / name).write_bytes(whole[name][:-300])
    with pytest.raises(StoreError, match="damaged: 2 of 18 images") as raised:
        pack(tmp_path)
    assert all(str(source / name) in str(raised.value) for name in whole)
    assert not list(tmp_path.glob("packed*"))
    for name, content in whole.items():
        (source / name).write_bytes(content)
    assert pack(tmp_path)


def test_many_damaged_images_are_named_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in write_set(tmp_path).glob("val/*/*"):
        path.write_bytes(b"no image")
    monkeypatch.setattr(packing, "MOST_NAMED", 2)
    assert_raises(StoreError, r"and 4 more; .*packed-damaged\.txt names all", pack, tmp_path)
    assert len((tmp_path / "packed-damaged.txt").read_text().splitlines()) == EVALUATION


def test_a_file_that_cannot_be_read_or_changes_meanwhile_is_told(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = source / "train/n01/train_000.JPEG"
    broken.unlink()
    broken.symlink_to(tmp_path / "nowhere")
    assert_raises(StoreError, r"train_000\.JPEG: cannot be read \(No such file", pack, tmp_path)
    examine = decoding.examine

    def examine_and_cut_another(content: bytes) -> tuple[int, int, int]:
        os.truncate(source / "val/n03/val_014.JPEG", 100)
        return examine(content)

    broken.unlink()
    broken.write_bytes(jpeg(0))
    monkeypatch.setattr(packing, "examine", examine_and_cut_another)
    assert_raises(StoreError, r"val_014\.JPEG: changed while it was read", pack, tmp_path)


def test_packed_set_needs_its_source_no_longer_and_a_damaged_index_is_found(
    source: Path, tmp_path: Path
) -> None:
    folder = pack(tmp_path)
    shutil.rmtree(source)
    assert pack(tmp_path) == folder
    assert verification.verify(folder)
    ends = np.load(folder / "images_ends.npy")
    ends[3] = ends[2] - 1
    np.save(folder / "images_ends.npy", ends)
    assert_raises(StoreError, r"images\.bin: where its rows end is damaged", imagenet.load, folder)


# Interruptions ------------------------------------------------------------------------------------


def test_an_interrupted_drawing_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while images are drawn; the tests of the engine also kill it while it packs."""
    folder, encode, drawn_before = tmp_path / "a" / "packed", drawn.encode_picture, 5

    def encode_a_few(*given: Any) -> bytes:
        nonlocal drawn_before
        drawn_before -= 1
        if drawn_before < 0:
            raise KeyboardInterrupt
        return encode(*given)

    with monkeypatch.context() as patched:
        patched.setattr(drawn, "encode_picture", encode_a_few)
        with pytest.raises(KeyboardInterrupt):
            imagenet.prepare(folder, DRAWN, processes=1)
    assert not folder.exists()
    assert 0 < len(list(folder.parent.glob("packed-files/**/*.JPEG"))) < TRAIN
    whole = imagenet.prepare(tmp_path / "b" / "packed", DRAWN, processes=1)
    assert imagenet.prepare(folder, DRAWN, processes=1) == whole


def test_unfinished_packing_of_other_files_is_kept(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(packing, "examine", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            pack(tmp_path)
    (source / "train/n01/train_000.JPEG").write_bytes(jpeg(5))
    assert_raises(StoreError, r"unfinished preparation of something else", pack, tmp_path)
    assert (tmp_path / "packed.partial" / preparation.JOURNAL).exists()


# What is found, and what is missing ---------------------------------------------------------------


def list_source(source: Path) -> Listing:
    return imagenet_layout.list_files(source, len(CLASSES), TRAIN, EVALUATION)


def test_lists_training_then_validation_in_the_order_of_classes_and_nothing_else(
    source: Path,
) -> None:
    found = list_source(source)
    assert found.classes == CLASSES
    places = ("n01/train_000", "n01/train_003", "n01/train_006", "n01/train_009", "n02/train_001")
    assert found.names[:5] == tuple(f"train/{place}.JPEG" for place in places)
    assert found.names[TRAIN] == "val/n01/val_012.JPEG"
    assert found.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [0, 0, 1, 1, 2, 2]
    sizes = [(source / name).stat().st_size for name in found.names]
    assert found.sizes_bytes.tolist() == sizes
    (source / "train/n01/.train_000.JPEG.123").touch()
    (source / "train/n01/README.txt").touch()
    (source / "train/.cache").mkdir()
    assert list_source(source).names == found.names


# Validation images in one folder ------------------------------------------------------------------


def caffe(source: Path, truth: list[tuple[str, str]]) -> None:
    lines = [f"{name} {CLASSES.index(folder)}" for name, folder in truth]
    (source / "val.txt").write_text("\n".join(lines))


def tensorflow(source: Path, truth: list[tuple[str, str]]) -> None:
    path = source / "imagenet_2012_validation_synset_labels.txt"
    path.write_text("".join(f"{folder}\n" for _, folder in truth))


@pytest.mark.parametrize("write_list", [caffe, tensorflow])
def test_flat_validation_images_get_their_classes_from_a_list(
    source: Path, write_list: Callable[[Path, list[tuple[str, str]]], None]
) -> None:
    """Tests of layouts have the lists of Kaggle and of the devkit."""
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


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda source: shutil.rmtree(source), r"train: there is no such folder\. Put ImageNet"),
        (lambda source: shutil.rmtree(source / "val"), r"val: there is no such folder"),
        (lambda source: shutil.rmtree(source / "train/n02"),
         r"train: 2 class folders with images, expected 3\. Unpack"),
        (lambda source: [path.unlink() for path in (source / "train/n02").iterdir()],
         r"2 class folders with images, expected 3; without images: n02"),
        (lambda source: (source / "train/n02.tar").touch(),
         r"train: 1 archive \(n02\.tar\) is not unpacked"),
        (lambda source: (source / "train/n03/train_005.JPEG").unlink(),
         r"train: 11 images, expected 12\. The folders with fewest are n03 with 3, n01 with 4"),
        (lambda source: shutil.rmtree(source / "val/n01"),
         r"val: has no class folder n01, which train has"),
        (lambda source: (source / "val/n04").mkdir(), r"val: has a class folder n04, which train"),
        (lambda source: (source / "val/n01/val_012.JPEG").unlink(), r"val: 5 images, expected 6"),
        (lambda source: (source / "val/n01/val_012.JPEG").rename(source / "val/val_012.JPEG"),
         r"class folders and images beside them \(val_012\.JPEG\)"),
        (lambda source: (source / "val/n01/val_012.JPEG").write_bytes(b""),
         r"1 file \(val/n01/val_012\.JPEG\) is empty"),
    ],
)  # fmt: skip
def test_an_incomplete_set_is_refused(
    source: Path, damage: Callable[[Path], object], message: str
) -> None:
    damage(source)
    assert_raises(StoreError, message, list_source, source)
