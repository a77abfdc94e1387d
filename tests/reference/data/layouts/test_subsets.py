"""A part of a dataset is enough for `--limit`, whatever layout it is in."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cepheid.reference.data import coco, imagenet, radiographs, store, videos, wmt
from cepheid.reference.data.layouts import laying_out
from cepheid.reference.data.layouts.declared import PARTS
from cepheid.reference.data.store import StoreError
from cepheid.reference.run.config import configure, limit_samples
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from tests.reference.data import pictures
from tests.reference.data.coco import replica as photographs
from tests.reference.data.layouts.replicas import IMAGENETS, huggingface, ignore, write_imagenet
from tests.reference.data.radiographs import replica as xrays
from tests.reference.data.videos.test_clips import READ, write_kitti
from tests.reference.data.wmt import replica as text
from tests.reference.data.wmt import test_pairs
from tests.reference.data.wmt.test_distributed import ASKED, OF_EACH, TEST

FEW = replace(pictures.REAL, train_samples=5, evaluation_samples=3, is_subset=True)


def lose(*paths: Path) -> None:
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def count(found: Any) -> tuple[int, int]:
    return found.train_samples, found.evaluation_samples


def prepare_imagenet(root: Path) -> tuple[int, int]:
    source = pictures.write_set(root)
    lose(source / "train/n02", source / "val/n02", source / "train/n03/train_005.JPEG")
    images = imagenet.load(pictures.pack(root, FEW))
    assert images.classes == ("n01", "n03")
    assert sorted(set(images.labels.tolist())) == [0, 1]
    with pytest.raises(StoreError, match="--limit asks for 50; fix: give a smaller one"):
        imagenet.prepare(root / "more", replace(FEW, train_samples=50), processes=1)
    return count(images)


def prepare_coco(root: Path) -> tuple[int, int]:
    lose(*sorted((photographs.write_replica(root) / "train2017").iterdir())[:2])
    few = replace(photographs.PARAMETERS, train_samples=5, evaluation_samples=3, is_subset=True)
    return count(coco.load(photographs.pack(root, few)))


def prepare_radiographs(root: Path) -> tuple[int, int]:
    lose(xrays.write_replica(root) / "images_001/images/00000002_000.png")
    few = replace(xrays.PARAMETERS, train_samples=3, evaluation_samples=2, is_subset=True)
    radiographs.prepare(root / "packed", few, processes=1)
    return count(radiographs.load(root / "packed"))


def prepare_videos(root: Path) -> tuple[int, int]:
    source = root / "KITTI"
    write_kitti(source, {"training": [9, 5], "testing": [3, 11]})
    lose(source / "training/image_02/0000/000005.png", source / "testing/image_02/0000")
    few = replace(READ, train_samples=2, evaluation_samples=1, is_subset=True)
    manifest = videos.prepare(root / "packed", few, processes=1)
    with pytest.raises(StoreError, match="2 clips, expected 3; fix: give a smaller --limit, or"):
        videos.prepare(root / "more", replace(few, train_samples=3), processes=1)
    return manifest.parameters["train_samples"], manifest.parameters["evaluation_samples"]


def prepare_text(root: Path) -> tuple[int, int]:
    text.write_replica(root / "WMT16", OF_EACH, TEST)
    lose(*(root / "WMT16").glob("commoncrawl*"), root / "WMT16/training")
    few = replace(ASKED, train_samples=10, evaluation_samples=3, is_subset=True)
    wmt.prepare(root / "packed", few, 1)
    return count(wmt.load(root / "packed"))


def prepare_text_of_2017(root: Path) -> tuple[int, int]:
    source = test_pairs.write_text(root)
    lose(source / "one.en", source / "one.de")
    few = replace(test_pairs.GIVEN, train_samples=1, evaluation_samples=1, is_subset=True)
    wmt.prepare(root / "packed", few, 1)
    return count(wmt.load(root / "packed"))


SUBSETS: dict[str, tuple[Callable[[Path], tuple[int, int]], tuple[int, int]]] = {
    imagenet.REAL: (prepare_imagenet, (5, 3)),
    coco.REAL: (prepare_coco, (5, 3)),
    radiographs.REAL: (prepare_radiographs, (3, 2)),
    "KITTI": (prepare_videos, (2, 1)),
    "WMT16": (prepare_text, (10, 3)),
    "WMT17": (prepare_text_of_2017, (1, 1)),
}


@pytest.mark.parametrize("source", PARTS)
def test_incomplete_files_are_enough_for_a_subset(tmp_path: Path, source: str) -> None:
    prepare, expected = SUBSETS[source]
    assert prepare(tmp_path) == expected


@pytest.mark.parametrize("write", IMAGENETS)
def test_a_subset_of_imagenet_is_taken_from_any_layout(
    tmp_path: Path, write: Callable[[Path, Path], None]
) -> None:
    source = write_imagenet(tmp_path / "distributed")
    write(source, tmp_path / "given")
    target = tmp_path / "data" / imagenet.REAL
    laying_out.lay_out(imagenet.REAL, tmp_path / "given", target, ignore, is_subset=True)
    packed = pictures.pack(tmp_path / "data", FEW)
    names = re.findall(r"[^/]+?\.JPEG", bytes(store.open_arrays(packed)["names"]).decode())
    folders = {path.name: path.parent.name for path in source.glob("*/*/*")}
    images = imagenet.load(packed)
    assert [images.classes[label] for label in images.labels] == [folders[name] for name in names]
    assert len(names) == 8


def test_validation_images_without_a_list_are_enough_to_try(tmp_path: Path) -> None:
    pictures.flatten(pictures.write_set(tmp_path))
    assert imagenet.load(pictures.pack(tmp_path, FEW)).labels.tolist()[5:] == [0, 0, 0]


def test_some_of_the_shards_are_enough_for_a_subset_alone(tmp_path: Path) -> None:
    huggingface(write_imagenet(tmp_path / "distributed"), tmp_path / "given")
    lose(tmp_path / "given/data/train-00001-of-00002.parquet")
    target = tmp_path / "data" / imagenet.REAL
    with pytest.raises(StoreError, match=r"1 of 2 files like train-00000.*or try with --limit"):
        laying_out.lay_out(imagenet.REAL, tmp_path / "given", target, ignore)
    laying_out.lay_out(imagenet.REAL, tmp_path / "given", target, ignore, is_subset=True)
    pictures.pack(tmp_path / "data", FEW)


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
