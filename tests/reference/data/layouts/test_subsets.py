"""``--limit``: what is there of a dataset is enough to try a benchmark, and never counts."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cepheid.reference.data import coco, imagenet, radiographs, wmt
from cepheid.reference.data.store import StoreError
from cepheid.reference.run.config import configure, limit_samples
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from tests.reference.data import pictures
from tests.reference.data.coco import replica as photographs
from tests.reference.data.radiographs import replica as xrays
from tests.reference.data.wmt import replica as text
from tests.reference.data.wmt.test_distributed import ASKED, OF_EACH, TEST


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
