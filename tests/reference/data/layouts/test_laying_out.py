"""Whatever layout somebody has a dataset in, or a part of it, the same bytes are prepared."""

import contextlib
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cepheid.reference.data import coco, imagenet, radiographs, store, videos, wmt
from cepheid.reference.data.layouts import containers, laying_out
from cepheid.reference.data.store import StoreError
from tests import assert_raises
from tests.reference.data import pictures
from tests.reference.data.coco import replica as photographs
from tests.reference.data.layouts import replicas
from tests.reference.data.numbered import change_byte
from tests.reference.data.radiographs import replica as xrays
from tests.reference.data.videos.test_clips import READ, write_kitti
from tests.reference.data.wmt import replica as text
from tests.reference.data.wmt.test_distributed import ASKED, OF_EACH, TEST

WMT16, WMT17 = "WMT16", "WMT17"


def lay_out(root: Path, source: str, given: Path) -> Path:
    """Lay out below ``root``, which is new; returns the folder for what is prepared."""
    laying_out.lay_out(source, given, root / source, replicas.ignore)
    return root / "packed"


def assert_same(expected: Path, found: Path) -> None:
    """Require that both folders of prepared data have one digest."""
    assert store.read_manifest(found).digest == store.read_manifest(expected).digest


# ImageNet -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", replicas.IMAGENETS)
def test_imagenet_in_any_layout_is_the_same(
    tmp_path: Path, write: Callable[[Path, Path], None]
) -> None:
    source, given = replicas.write_imagenet(tmp_path / "distributed"), tmp_path / "given"
    write(source, given)
    lay_out(tmp_path / "data", imagenet.REAL, given)
    assert_same(*(pictures.pack(tmp_path / part) for part in ("distributed", "data")))
    target = tmp_path / "data" / imagenet.REAL
    told = laying_out.lay_out(imagenet.REAL, given, target, replicas.ignore)
    assert told == [f"{target}: was laid out before"]


# The other datasets -------------------------------------------------------------------------------


def write_coco(given: Path, source: Path, layout: str) -> None:
    if layout == "mmdetection":
        shutil.copytree(source, given)
    elif layout == "torchvision":  # any folders of images, and files of annotations
        shutil.copytree(source / "annotations", given / "annotations")
        for part in ("train2017", "val2017"):
            shutil.copytree(source / part, given / "images" / part)
    else:
        annotations = replicas.list_below(source / "annotations", "annotations/")
        replicas.write_zip(given / "annotations_trainval2017.zip", annotations)
        for part in ("train2017", "val2017"):
            files = replicas.list_below(source / part, f"{part}/")
            replicas.write_zip(given / f"{part}.zip", files, zipfile.ZIP_STORED)


@pytest.mark.parametrize("layout", ["mmdetection", "torchvision", "archives"])
def test_coco_in_any_layout_is_the_same(tmp_path: Path, layout: str) -> None:
    source, given = photographs.write_replica(tmp_path / "distributed"), tmp_path / "given"
    write_coco(given, source, layout)
    lay_out(tmp_path / "data", coco.REAL, given)
    assert_same(*(photographs.pack(tmp_path / part) for part in ("distributed", "data")))


@pytest.mark.parametrize("layout", ["folders", "tars", "zips", "one zip"])
def test_radiographs_in_any_layout_are_the_same(tmp_path: Path, layout: str) -> None:
    source = xrays.write_replica(tmp_path / "distributed")
    prepare = radiographs.prepare
    expected = prepare(tmp_path / "distributed" / "packed", xrays.PARAMETERS, processes=1)
    given = tmp_path / "given"
    if layout == "one zip":  # as Kaggle has it
        replicas.write_zip(given / "archive.zip", replicas.list_below(source))
    else:
        shutil.copytree(source, given)
        for folder in () if layout == "folders" else list(given.glob("images_*")):
            files = replicas.list_below(folder)
            if layout == "zips":
                replicas.write_zip(Path(f"{folder}.zip"), files)
            else:
                replicas.write_tar(Path(f"{folder}.tar.gz"), dict(files), "w:gz")
            shutil.rmtree(folder)
    folder = lay_out(tmp_path / "data", radiographs.REAL, given)
    assert prepare(folder, xrays.PARAMETERS, processes=1).digest == expected.digest


@pytest.mark.parametrize("is_packed", [False, True])
def test_kitti_in_a_zip_is_the_same(tmp_path: Path, is_packed: bool) -> None:
    source = tmp_path / "distributed/KITTI"
    write_kitti(source, {"training": [9, 5], "testing": [3, 11]})
    expected = videos.prepare(tmp_path / "distributed" / "packed", READ, processes=1)
    if is_packed:
        archive = tmp_path / "given" / "data_tracking_image_2.zip"
        replicas.write_zip(archive, replicas.list_below(source))
        source = archive.parent
    folder = lay_out(tmp_path / "data", "KITTI", source)
    assert videos.prepare(folder, READ, processes=1).digest == expected.digest


@pytest.mark.parametrize("test_set", ["dev.tgz", "sacrebleu"])
def test_text_in_archives_is_the_same(tmp_path: Path, test_set: str) -> None:
    source = tmp_path / "distributed" / WMT16
    text.write_replica(source, OF_EACH, TEST)
    expected = wmt.prepare(tmp_path / "distributed" / "packed", ASKED, processes=1)
    for folder, archive in (("training", "training-parallel-europarl-v7"), ("dev", "dev")):
        files = replicas.list_below(source / folder, f"{folder}/")
        replicas.write_tar(tmp_path / f"given/{archive}.tgz", dict(files), "w:gz")
    for path in [*source.glob("commoncrawl*"), *source.glob("training-parallel-nc-v11/*")]:
        shutil.copy(path, tmp_path / "given")
    if test_set == "sacrebleu":
        (tmp_path / "given/dev.tgz").unlink()
        raw = tmp_path / "given/.sacrebleu/wmt14/full/raw/test-full"
        shutil.copytree(source / "dev", raw)
    where = lay_out(tmp_path / "data", WMT16, tmp_path / "given")
    assert wmt.prepare(where, ASKED, processes=1).digest == expected.digest


# What is refused ----------------------------------------------------------------------------------


def test_a_folder_without_the_dataset_says_what_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "given").mkdir()
    with pytest.raises(StoreError, match=r"no training images of ILSVRC2012; looked for .*train"):
        lay_out(tmp_path, imagenet.REAL, tmp_path / "given")
    with pytest.raises(StoreError, match=r"nothing of WMT17|no test set"):
        lay_out(tmp_path, WMT17, tmp_path / "given")
    assert_raises(StoreError, "no such folder", lay_out, tmp_path, WMT17, tmp_path / "nowhere")
    with pytest.raises(StoreError, match="is a file; give the folder"):
        lay_out(tmp_path, WMT17, Path(__file__))
    assert_raises(StoreError, "layouts of CIFAR", lay_out, tmp_path, "CIFAR", tmp_path / "given")
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path / "given")
    assert_raises(StoreError, "given: cannot be read", lay_out, tmp_path, WMT17, tmp_path / "given")
    assert not (tmp_path / imagenet.REAL).exists()


def test_what_is_there_already_is_not_touched(tmp_path: Path) -> None:
    source = pictures.write_set(tmp_path / "given")
    (tmp_path / imagenet.REAL).mkdir()
    with pytest.raises(StoreError, match=r"is already there\. Leave out --source"):
        lay_out(tmp_path, imagenet.REAL, source)


@pytest.mark.parametrize("name", ["../../evil/000000.png", "training/image_02/0000/000000.png"])
def test_archives_write_nothing_outside_and_nothing_huge(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "given"
    given.mkdir()
    with zipfile.ZipFile(given / "data_tracking_image_2.zip", "w") as archive:
        archive.writestr(name, b"0" * 100)
    if not name.startswith(".."):
        monkeypatch.setattr(containers, "MEMBER_BYTES_MAX", 99)
        assert_raises(StoreError, "expected at most 99", lay_out, tmp_path / "data", "KITTI", given)
        return
    lay_out(tmp_path / "data", "KITTI", given)
    assert not [*tmp_path.rglob("evil")]


@pytest.mark.parametrize("name", ["a.zip", "a.tgz", "images_001.tar.gz"])
def test_a_damaged_archive_is_named(tmp_path: Path, name: str) -> None:
    source = xrays.write_replica(tmp_path)
    shutil.rmtree(source / "images_001")
    (source / name).write_bytes(b"no archive")
    with pytest.raises(StoreError, match=rf"{name}: is damaged"):
        lay_out(tmp_path / "data", WMT16 if name == "a.tgz" else radiographs.REAL, source)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def flip_a_byte(path: Path) -> None:
    change_byte(path, path.stat().st_size // 2)


DAMAGED = {
    "ILSVRC2012_img_train.tar": replicas.archives,
    "ILSVRC2012_devkit_t12.tar.gz": replicas.archives,
    "imagenet-object-localization-challenge.zip": replicas.kaggle_zip,
    "data/train-00001-of-00002.parquet": replicas.huggingface,
    "imagenet1k-validation-0000.tar": replicas.webdataset,
    "train-00000-of-00001": replicas.tfrecord,
}


@pytest.mark.parametrize("name", DAMAGED)
@pytest.mark.parametrize("damage", [cut_short, flip_a_byte])
def test_half_a_download_and_a_damaged_one_are_named(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    """Where the end tells it, before anything is unpacked; nothing damaged is ever taken."""
    DAMAGED[name](replicas.write_imagenet(tmp_path), tmp_path / "given")
    damage(tmp_path / "given" / name)
    is_told_by_the_end = not name.endswith((".gz", "00001")) and damage is cut_short
    refused: Any = pytest.raises(StoreError, match=f"{Path(name).name}|images cannot be decoded")
    has_checksum = not name.endswith((".tar", ".parquet"))  # nor has a JPEG file
    if damage is flip_a_byte and not has_checksum:
        refused = contextlib.suppress(StoreError)
    with refused:
        pictures.pack(lay_out(tmp_path / "data", imagenet.REAL, tmp_path / "given").parent)
    assert (tmp_path / "data").exists() != is_told_by_the_end


def test_validation_images_without_labels_are_refused_before_they_are_unpacked(
    tmp_path: Path,
) -> None:
    replicas.archives(replicas.write_imagenet(tmp_path / "distributed"), tmp_path / "given")
    (tmp_path / "given/ILSVRC2012_devkit_t12.tar.gz").unlink()
    with pytest.raises(StoreError, match=r"labels of the validation images.*looked for val\.txt"):
        lay_out(tmp_path / "data", imagenet.REAL, tmp_path / "given")
    assert not (tmp_path / "data").exists()


def test_an_archive_that_came_later_is_unpacked_too(tmp_path: Path) -> None:
    replicas.class_tars(replicas.write_imagenet(tmp_path / "distributed"), tmp_path / "given")
    late = tmp_path / "given/train/n00000002.tar"
    late.rename(tmp_path / late.name)
    lay_out(tmp_path / "data", imagenet.REAL, tmp_path / "given")
    with pytest.raises(StoreError, match="2 class folders with images, expected 3"):
        pictures.pack(tmp_path / "data")
    (tmp_path / late.name).rename(late)
    lay_out(tmp_path / "data", imagenet.REAL, tmp_path / "given")
    pictures.pack(tmp_path / "data")


def test_shards_with_other_labels_are_refused(tmp_path: Path) -> None:
    """Labels decide what a network learns: those in another order are other data."""
    source = replicas.write_imagenet(tmp_path / "distributed")
    replicas.webdataset(source, tmp_path / "given")
    files: dict[str, Path | bytes] = {}
    for path, _, label in replicas.list_images(source, "train"):
        files |= {f"{path.stem}.jpg": path, f"{path.stem}.cls": str(2 - label).encode()}
    replicas.write_tar(tmp_path / "given/imagenet1k-train-0000.tar", files)
    with pytest.raises(StoreError, match="not in the order of the classes' names"):
        lay_out(tmp_path / "data", imagenet.REAL, tmp_path / "given")


@pytest.mark.parametrize(("free_share", "prepared_share"), [(0, 0.0), (1.5, 1.0)])
def test_a_full_disk_is_found_before_anything_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_share: float, prepared_share: float
) -> None:
    """Also where only one of the two has room: what is unpacked, or what is made of it."""
    given, target = tmp_path / "given", tmp_path / "data" / imagenet.REAL
    replicas.archives(replicas.write_imagenet(tmp_path / "distributed"), given)
    size = sum(path.stat().st_size for path in given.iterdir())
    disk = shutil._ntuple_diskusage(1, 1, int(2**20 + free_share * size))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: disk)
    with pytest.raises(StoreError, match="not enough disk space"):
        laying_out.lay_out(imagenet.REAL, given, target, replicas.ignore, prepared_share)


def test_an_interrupted_unpacking_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replicas.archives(replicas.write_imagenet(tmp_path / "distributed"), tmp_path / "given")
    with monkeypatch.context() as patch:
        patch.setattr(containers.Member, "read_pieces", interrupt_after(5))
        with pytest.raises(KeyboardInterrupt):
            lay_out(tmp_path / "data", imagenet.REAL, tmp_path / "given")
    before = {path: path.stat().st_ino for path in (tmp_path / "data").rglob("*.JPEG")}
    assert 0 < len(before) < pictures.TRAIN
    lay_out(tmp_path / "data", imagenet.REAL, tmp_path / "given")
    assert all(path.stat().st_ino == number for path, number in before.items())


def interrupt_after(count: int) -> Callable[..., Iterator[bytes]]:
    read, real = [0], containers.Member.read_pieces

    def read_pieces(member: containers.Member) -> Iterator[bytes]:
        read[0] += 1
        if read[0] > count:
            raise KeyboardInterrupt
        yield from real(member)

    return read_pieces
