"""Packing a set of image files, and what stands in the way."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cepheid.reference.data import imagenet, preparation, verification
from cepheid.reference.data.image_files import decoding, drawn, packing
from cepheid.reference.data.image_files.decoding import KINDS
from cepheid.reference.data.store import StoreError
from tests.reference.data.pictures import (
    CLASSES,
    DRAWN,
    EVALUATION,
    TRAIN,
    jpeg,
    pack,
    write_set,
)  # fmt: skip


def test_packed_files_are_the_files(tmp_path: Path) -> None:
    source = write_set(tmp_path)
    folder = pack(tmp_path)
    images = imagenet.load(folder)
    names = sorted(path for path in source.glob("train/*/*")) + sorted(source.glob("val/*/*"))
    assert len(images.labels) == len(names) == TRAIN + EVALUATION
    for row, path in enumerate(names):
        assert bytes(images.files.read(row)) == path.read_bytes()
        assert images.classes[images.labels[row]] == path.parent.name
    assert images.classes == CLASSES
    assert (images.train_samples, images.evaluation_samples) == (TRAIN, EVALUATION)
    assert verification.verify(folder) == images.manifest
    assert imagenet.DATASET.remark(folder) == []


def test_files_may_be_anywhere_behind_a_link(tmp_path: Path) -> None:
    write_set(tmp_path / "archive")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / imagenet.REAL).symlink_to(tmp_path / "archive" / imagenet.REAL)
    assert imagenet.load(pack(tmp_path / "data")).train_samples == TRAIN


# Unusual and damaged images -----------------------------------------------------------------------


def test_unusual_images_are_named_and_counted(tmp_path: Path) -> None:
    source = write_set(tmp_path)
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


def test_damaged_images_are_all_named_and_nothing_is_left(tmp_path: Path) -> None:
    source = write_set(tmp_path)
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
    source = write_set(tmp_path)
    for path in source.glob("val/*/*"):
        path.write_bytes(b"no image")
    monkeypatch.setattr("cepheid.reference.data.image_files.packing.MOST_NAMED", 2)
    with pytest.raises(StoreError, match=r"and 4 more; .*packed-damaged\.txt names all"):
        pack(tmp_path)
    assert len((tmp_path / "packed-damaged.txt").read_text().splitlines()) == EVALUATION


def test_unreadable_file_is_told(tmp_path: Path) -> None:
    source = write_set(tmp_path)
    broken = source / "train/n01/train_000.JPEG"
    broken.unlink()
    broken.symlink_to(tmp_path / "nowhere")
    with pytest.raises(StoreError, match=r"train_000\.JPEG: cannot be read \(No such file"):
        pack(tmp_path)


def test_file_that_changes_while_it_is_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_set(tmp_path)
    examine = decoding.examine

    def examine_and_cut_another(content: bytes) -> tuple[int, int, int]:
        os.truncate(source / "val/n03/val_014.JPEG", 100)
        return examine(content)

    monkeypatch.setattr(
        "cepheid.reference.data.image_files.packing.examine", examine_and_cut_another
    )
    with pytest.raises(StoreError, match=r"val_014\.JPEG: changed while it was read"):
        pack(tmp_path)


# What stands in the way ---------------------------------------------------------------------------


def test_packed_set_needs_its_source_no_longer(tmp_path: Path) -> None:
    source = write_set(tmp_path)
    folder = pack(tmp_path)
    shutil.rmtree(source)
    assert pack(tmp_path) == folder
    assert verification.verify(folder)


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_set(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("cepheid.reference.data.image_files.packing.examine", interrupting)
        with pytest.raises(KeyboardInterrupt):
            pack(tmp_path)
    (source / "train/n01/train_000.JPEG").write_bytes(jpeg(5))
    with pytest.raises(StoreError, match=r"unfinished preparation of something else"):
        pack(tmp_path)
    assert (tmp_path / "packed.partial" / preparation.JOURNAL).exists()


def interrupting(content: bytes) -> tuple[int, int, int]:
    raise KeyboardInterrupt


def test_damaged_index_is_found(tmp_path: Path) -> None:
    write_set(tmp_path)
    folder = pack(tmp_path)
    ends = np.load(folder / "images_ends.npy")
    ends[3] = ends[2] - 1
    np.save(folder / "images_ends.npy", ends)
    with pytest.raises(StoreError, match=r"images\.bin: where its rows end is damaged"):
        imagenet.load(folder)
