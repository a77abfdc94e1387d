"""Whatever layout somebody has a dataset in, or a part of it, the same bytes are prepared."""

import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cepheid.reference.data import coco, imagenet, radiographs, store, videos, wmt
from cepheid.reference.data.layouts import containers, laying_out
from cepheid.reference.data.store import StoreError
from cepheid.reference.data.wmt import parallel_text
from cepheid.reference.run.config import configure, limit_samples
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from tests.reference.data import pictures
from tests.reference.data.coco import replica as photographs
from tests.reference.data.layouts.replicas import (
    IMAGENETS,
    archives,
    list_below,
    list_images,
    webdataset,
    write_imagenet,
    write_tar,
    write_zip,
)
from tests.reference.data.radiographs import replica as xrays
from tests.reference.data.videos.test_clips import READ, write_kitti
from tests.reference.data.wmt import replica as text
from tests.reference.data.wmt.test_distributed import ASKED, OF_EACH, TEST

WMT16, WMT17 = "WMT16", "WMT17"


def ignore(done: int, total: int) -> None:
    pass


def lay_out(root: Path, source: str, given: Path) -> Path:
    """Lay out below ``root``, which is new; returns the folder for what is prepared."""
    laying_out.lay_out(source, given, root / source, ignore)
    return root / "packed"


# ImageNet -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", IMAGENETS)
def test_imagenet_in_any_layout_is_the_same(
    tmp_path: Path, write: Callable[[Path, Path], None]
) -> None:
    source = write_imagenet(tmp_path / "distributed")
    expected = store.read_manifest(pictures.pack(tmp_path / "distributed"))
    write(source, tmp_path / "given")
    lay_out(tmp_path / "data", imagenet.REAL, tmp_path / "given")
    assert store.read_manifest(pictures.pack(tmp_path / "data")).digest == expected.digest
    assert laying_out.lay_out(
        imagenet.REAL, tmp_path / "given", tmp_path / "data" / imagenet.REAL, ignore
    ) == [f"{tmp_path / 'data' / imagenet.REAL}: was laid out before"]


# The other datasets -------------------------------------------------------------------------------


def write_coco(given: Path, source: Path, layout: str) -> None:
    if layout == "mmdetection":
        shutil.copytree(source, given)
    elif layout == "torchvision":  # any folders of images, and files of annotations
        shutil.copytree(source / "annotations", given / "annotations")
        for part in ("train2017", "val2017"):
            shutil.copytree(source / part, given / "images" / part)
    else:
        annotations = list_below(source / "annotations", "annotations/")
        write_zip(given / "annotations_trainval2017.zip", annotations)
        for part in ("train2017", "val2017"):
            files = list_below(source / part, f"{part}/")
            write_zip(given / f"{part}.zip", files, zipfile.ZIP_STORED)


@pytest.mark.parametrize("layout", ["mmdetection", "torchvision", "archives"])
def test_coco_in_any_layout_is_the_same(tmp_path: Path, layout: str) -> None:
    source = photographs.write_replica(tmp_path / "distributed")
    expected = store.read_manifest(photographs.pack(tmp_path / "distributed"))
    write_coco(tmp_path / "given", source, layout)
    lay_out(tmp_path / "data", coco.REAL, tmp_path / "given")
    assert store.read_manifest(photographs.pack(tmp_path / "data")).digest == expected.digest


@pytest.mark.parametrize("layout", ["folders", "tars", "zips", "one zip"])
def test_radiographs_in_any_layout_are_the_same(tmp_path: Path, layout: str) -> None:
    source = xrays.write_replica(tmp_path / "distributed")
    prepare = radiographs.prepare
    expected = prepare(tmp_path / "distributed" / "packed", xrays.PARAMETERS, processes=1)
    given = tmp_path / "given"
    if layout == "one zip":  # as Kaggle has it
        write_zip(given / "archive.zip", list_below(source))
    else:
        shutil.copytree(source, given)
        for number in () if layout == "folders" else (1, 2):
            folder = given / f"images_{number:03}"
            name = Path(f"{folder}.{'zip' if layout == 'zips' else 'tar.gz'}")
            files = list_below(folder)
            if layout == "zips":
                write_zip(name, files)
            else:
                write_tar(name, dict(files), "w:gz")
            shutil.rmtree(folder)
    folder = lay_out(tmp_path / "data", radiographs.REAL, given)
    assert prepare(folder, xrays.PARAMETERS, processes=1).digest == expected.digest


@pytest.mark.parametrize("is_packed", [False, True])
def test_kitti_in_a_zip_is_the_same(tmp_path: Path, is_packed: bool) -> None:
    source = tmp_path / "distributed/KITTI"
    write_kitti(source, {"training": [9, 5], "testing": [3, 11]})
    expected = videos.prepare(tmp_path / "distributed" / "packed", READ, processes=1)
    if is_packed:
        write_zip(tmp_path / "given" / "data_tracking_image_2.zip", list_below(source))
        source = tmp_path / "given"
    folder = lay_out(tmp_path / "data", "KITTI", source)
    assert videos.prepare(folder, READ, processes=1).digest == expected.digest


def test_text_in_archives_is_the_same(tmp_path: Path) -> None:
    source = tmp_path / "distributed" / WMT16
    text.write_replica(source, OF_EACH, TEST)
    expected = wmt.prepare(tmp_path / "distributed" / "packed", ASKED, processes=1)
    for folder, archive in (("training", "training-parallel-europarl-v7"), ("dev", "dev")):
        files = list_below(source / folder, f"{folder}/")
        write_tar(tmp_path / f"given/{archive}.tgz", dict(files), "w:gz")
    for path in [*source.glob("commoncrawl*"), *source.glob("training-parallel-nc-v11/*")]:
        shutil.copy(path, tmp_path / "given")
    where = lay_out(tmp_path / "data", WMT16, tmp_path / "given")
    assert wmt.prepare(where, ASKED, processes=1).digest == expected.digest


@pytest.mark.parametrize("test_set", ["sacrebleu", "huggingface"])
def test_text_of_huggingface_and_sacrebleu_has_the_same_pairs(
    tmp_path: Path, test_set: str
) -> None:
    """HuggingFace lacks pairs with an empty side, which are not used, and the names of corpora."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    source = tmp_path / "distributed" / WMT16
    text.write_replica(source, OF_EACH, TEST)
    expected = wmt.prepare(tmp_path / "distributed" / "packed", ASKED, processes=1)
    corpora = [source / name for name in text.ODD_PAIRS]
    order = [next(c for c in corpora if c.name == name) for name in ASKED.train_files]
    rows = []
    for corpus in order:
        sides = [Path(f"{corpus}.{language}").read_text().split("\n") for language in ("en", "de")]
        for first, second in zip(*sides, strict=True):
            if first.strip() and second.strip():
                rows.append({"translation": {"de": second, "en": first}})
    given = tmp_path / "given"
    given.mkdir()
    parquet.write_table(pyarrow.Table.from_pylist(rows), given / "train-00000-of-00001.parquet")
    sgm = [source / f"dev/newstest2014-deen-{side}.sgm" for side in ("src.en", "ref.de")]
    if test_set == "sacrebleu":
        raw = given / ".sacrebleu/wmt14/full/raw/test-full"
        raw.mkdir(parents=True)
        for path in sgm:
            shutil.copy(path, raw)
    else:
        english, german = parallel_text.read_test_sets(source, ["newstest2014-deen"])
        pairs = [{"translation": {"en": a, "de": b}} for a, b in zip(english, german, strict=True)]
        parquet.write_table(pyarrow.Table.from_pylist(pairs), given / "test-00000-of-1.parquet")
    found = wmt.prepare(lay_out(tmp_path / "data", WMT16, given), ASKED, processes=1)
    assert found.parameters["lines"] == {"huggingface": len(rows)}
    for name, array in expected.arrays.items():
        assert found.arrays[name].chunks == array.chunks, name


# What is refused ----------------------------------------------------------------------------------


def test_a_folder_without_the_dataset_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    with pytest.raises(StoreError, match=r"no training images of ILSVRC2012; looked for .*train"):
        lay_out(tmp_path, imagenet.REAL, tmp_path / "given")
    with pytest.raises(StoreError, match=r"nothing of WMT17|no test set"):
        lay_out(tmp_path, WMT17, tmp_path / "given")
    with pytest.raises(StoreError, match="no such folder"):
        lay_out(tmp_path, WMT17, tmp_path / "nowhere")
    with pytest.raises(StoreError, match="layouts of KTH"):
        lay_out(tmp_path, "KTH", tmp_path / "given")
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
        with pytest.raises(StoreError, match="expected at most 99"):
            lay_out(tmp_path / "data", "KITTI", given)
        return
    lay_out(tmp_path / "data", "KITTI", given)
    assert not [*tmp_path.rglob("evil")]


@pytest.mark.parametrize("name", ["a.zip", "a.tgz", "images_001.tar.gz"])
def test_a_damaged_archive_is_named(tmp_path: Path, name: str) -> None:
    source = xrays.write_replica(tmp_path)
    shutil.rmtree(source / "images_001")
    (source / name).write_bytes(b"no archive")
    if name == "a.tgz":
        with pytest.raises(StoreError, match=r"a\.tgz: is damaged"):
            lay_out(tmp_path / "data", WMT16, source)
        return
    with pytest.raises(StoreError, match=rf"{name}: is damaged"):
        lay_out(tmp_path / "data", radiographs.REAL, source)


def test_shards_with_other_labels_are_refused(tmp_path: Path) -> None:
    """Labels decide what a network learns: those in another order are other data."""
    source = write_imagenet(tmp_path / "distributed")
    webdataset(source, tmp_path / "given")
    files: dict[str, Path | bytes] = {}
    for path, _, label in list_images(source, "train"):
        files |= {f"{path.stem}.jpg": path, f"{path.stem}.cls": str(2 - label).encode()}
    write_tar(tmp_path / "given/imagenet1k-train-0000.tar", files)
    with pytest.raises(StoreError, match="not in the order of the classes' names"):
        lay_out(tmp_path / "data", imagenet.REAL, tmp_path / "given")


def test_a_full_disk_is_found_before_anything_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_imagenet(tmp_path / "distributed")
    archives(source, tmp_path / "given")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1, 1, 1000))
    with pytest.raises(StoreError, match="not enough disk space"):
        lay_out(tmp_path / "data", imagenet.REAL, tmp_path / "given")


def test_an_interrupted_unpacking_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write_imagenet(tmp_path / "distributed")
    archives(source, tmp_path / "given")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", interrupt_after(5))
        with pytest.raises(KeyboardInterrupt):
            lay_out(tmp_path / "data", imagenet.REAL, tmp_path / "given")
    before = {path: path.stat().st_ino for path in (tmp_path / "data").rglob("*.JPEG")}
    assert 0 < len(before) < pictures.TRAIN
    lay_out(tmp_path / "data", imagenet.REAL, tmp_path / "given")
    assert all(path.stat().st_ino == number for path, number in before.items())


def interrupt_after(count: int) -> Callable[..., None]:
    copied, real = [0], shutil.copyfileobj

    def copy(*given: Any) -> None:
        copied[0] += 1
        if copied[0] > count:
            raise KeyboardInterrupt
        real(*given)

    return copy


# A part of a dataset ------------------------------------------------------------------------------


def lose(*paths: Path) -> None:
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def prepare_imagenet(root: Path) -> tuple[int, int]:
    source = pictures.write_set(root)
    lose(source / "train/n02", source / "val/n02", source / "train/n03/train_005.JPEG")
    few = replace(pictures.REAL, train_samples=5, evaluation_samples=3, is_subset=True)
    images = imagenet.load(pictures.pack(root, few))
    assert images.classes == ("n01", "n03")
    assert sorted(set(images.labels.tolist())) == [0, 1]
    with pytest.raises(StoreError, match="--limit asks for 50; fix: give a smaller one"):
        imagenet.prepare(root / "more", replace(few, train_samples=50), processes=1)
    return images.train_samples, images.evaluation_samples


def prepare_coco(root: Path) -> tuple[int, int]:
    source = photographs.write_replica(root)
    lose(*sorted((source / "train2017").iterdir())[:2])
    few = replace(photographs.PARAMETERS, train_samples=5, evaluation_samples=3, is_subset=True)
    found = coco.load(photographs.pack(root, few))
    return found.train_samples, found.evaluation_samples


def prepare_radiographs(root: Path) -> tuple[int, int]:
    source = xrays.write_replica(root)
    lose(source / "images_001/images/00000002_000.png")
    few = replace(xrays.PARAMETERS, train_samples=3, evaluation_samples=2, is_subset=True)
    radiographs.prepare(root / "packed", few, processes=1)
    found = radiographs.load(root / "packed")
    return found.train_samples, found.evaluation_samples


def prepare_text(root: Path) -> tuple[int, int]:
    text.write_replica(root / "WMT16", OF_EACH, TEST)
    few = replace(ASKED, train_samples=10, evaluation_samples=3, is_subset=True)
    wmt.prepare(root / "packed", few, 1)
    found = wmt.load(root / "packed")
    return found.train_samples, found.evaluation_samples


@pytest.mark.parametrize(
    ("prepare", "expected"),
    [
        (prepare_imagenet, (5, 3)),
        (prepare_coco, (5, 3)),
        (prepare_radiographs, (3, 2)),
        (prepare_text, (10, 3)),
    ],
)
def test_incomplete_files_are_enough_for_a_subset(
    tmp_path: Path, prepare: Callable[[Path], tuple[int, int]], expected: tuple[int, int]
) -> None:
    assert prepare(tmp_path) == expected


@pytest.mark.parametrize("name", definition.names())
def test_a_limited_run_is_short_and_says_what_it_is(name: str) -> None:
    chosen = definition.load(name, "full")
    limited = limit_samples(chosen, 100)
    assert (limited.train_samples, limited.evaluation_samples) == (100, 100)
    assert limited.digest == chosen.digest  # so T10 compares the counts, and refuses the log
    assert limited.timing.max_samples <= 200
    shared = configure(limited).list_shared_settings()
    assert shared["subset"] == {"train": 100}
    assert "subset" not in configure(chosen).list_shared_settings()
    with pytest.raises(UserError, match="expected 1 or more"):
        limit_samples(chosen, 0)
