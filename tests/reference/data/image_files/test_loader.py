"""Batches of ImageNet: the same for any number of ranks and workers."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from cepheid.reference.data import imagenet
from cepheid.reference.data.image_files import decoding
from cepheid.reference.data.image_files.crops import Cropping, Views, make_training_views
from cepheid.reference.data.image_files.loader import Loader
from cepheid.reference.data.image_files.threads import resize
from cepheid.reference.data.imagenet import Images
from cepheid.reference.data.order import SampleStream, Share
from cepheid.reference.data.store import StoreError
from tests.reference.data.pictures import EVALUATION, TRAIN, pack, write_set
from tests.reference.data.pictures import jpeg as jpeg_of

CROPPING = Cropping(32, 36, area=(0.3, 1.0))
BATCH = 8


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Images:
    root = tmp_path_factory.mktemp("imagenet")
    source = write_set(root)
    (source / "train/n01/train_000.JPEG").write_bytes(jpeg_of(0, "L"))
    (source / "train/n02/train_001.JPEG").write_bytes(jpeg_of(1, "CMYK"))
    return imagenet.load(pack(root))


def batches_of(
    images: Images, ranks: int, workers: int, seed: int = 3
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Global batches, put together from all ranks."""
    loaders = [
        Loader(images, CROPPING, seed, Share(rank, ranks, BATCH // ranks), workers)
        for rank in range(ranks)
    ]
    try:
        for number in range(5):
            parts = [loader.next_batch(number * BATCH) for loader in loaders]
            pictures, labels = (torch.cat(part).numpy() for part in zip(*parts, strict=True))
            yield pictures, labels
    finally:
        for loader in loaders:
            loader.close()


@pytest.mark.parametrize(("ranks", "workers"), [(1, 3), (2, 1), (2, 2), (4, 1)])
def test_batches_do_not_depend_on_ranks_and_workers(
    images: Images, ranks: int, workers: int
) -> None:
    expected = list(batches_of(images, 1, 1))
    for ours, theirs in zip(batches_of(images, ranks, workers), expected, strict=True):
        for found, wanted in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_another_seed_gives_other_batches_and_going_on_anywhere_the_same(images: Images) -> None:
    expected = list(batches_of(images, 1, 1))
    assert (expected[0][0] != next(batches_of(images, 1, 1, seed=4))[0]).any()
    loader = Loader(images, CROPPING, 3, Share(0, 1, BATCH), 2)
    for number in (3, 1, 2, 0, 0, 4):
        for found, wanted in zip(loader.next_batch(number * BATCH), expected[number], strict=True):
            np.testing.assert_array_equal(found.numpy(), wanted)
    loader.close()


@pytest.mark.parametrize("ranks", [1, 2])
def test_parts_make_the_batch(images: Images, ranks: int) -> None:
    expected = list(batches_of(images, 1, 1))
    loaders = [
        Loader(images, CROPPING, 3, Share(rank, ranks, BATCH // ranks), 2, parts=4)
        for rank in range(ranks)
    ]
    for number in (3, 0, 1):
        parts = [loader.next_batch(number * BATCH, part) for loader in loaders for part in range(4)]
        assert [len(labels) for _, labels in parts] == [BATCH // ranks // 4] * 4 * ranks
        for found, wanted in zip(zip(*parts, strict=True), expected[number], strict=True):
            np.testing.assert_array_equal(torch.cat(found).numpy(), wanted)
    again, _ = loaders[0].next_batch(BATCH, 2)
    assert torch.equal(again, parts[2][0])
    for loader in loaders:
        loader.close()


@settings(max_examples=20, deadline=None)
@given(ranks=st.integers(1, 5), batch=st.integers(1, 9))
def test_evaluation_counts_every_image_once(images: Images, ranks: int, batch: int) -> None:
    labels, lengths = [], set()
    for rank in range(ranks):
        loader = Loader(images, CROPPING, 3, Share(rank, ranks, BATCH))
        of_rank = list(loader.evaluation_batches(batch))
        loader.close()
        lengths.add(len(of_rank))
        for pictures, truth, valid in of_rank:
            assert (pictures.shape, truth.shape) == ((batch, 32, 32, 3), (batch,))
            labels += truth[valid].tolist()
    assert len(lengths) == 1
    assert len(labels) == EVALUATION
    assert sorted(labels) == sorted(images.labels[TRAIN:].tolist())


def test_a_worker_that_fails_is_heard(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(content: bytes, kind: int) -> np.ndarray:
        raise ValueError("no pixels")

    monkeypatch.setattr("cepheid.reference.data.image_files.packing.decode", failing)
    loader = Loader(images, CROPPING, 3, Share(0, 1, BATCH))
    with pytest.raises(StoreError, match="no pixels"):
        loader.next_batch(0)
    loader.close()


def test_resizing_is_pillows_bicubic() -> None:
    image = decoding.decode(jpeg_of(5), 0)
    height, width, _ = image.shape
    box = [3, 5, width - 2, height - 4]
    left, top, right, bottom = box
    for size in (24, 128):
        part = Image.fromarray(image[top:bottom, left:right])
        expected = np.asarray(part.resize((size, size), Image.Resampling.BICUBIC)).astype(int)
        difference = np.abs(resize(image, box, size).numpy() - expected)
        assert difference.max() <= 2
        assert difference.mean() < 0.1


def test_mirrored_images_are_mirrored(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, _ = next(batches_of(images, 1, 1))

    def all_mirrored(*given: Any) -> Views:
        views = make_training_views(*given)
        return replace(views, mirrored=~views.mirrored)

    changed = "cepheid.reference.data.image_files.loader.make_training_views"
    monkeypatch.setattr(changed, all_mirrored)
    turned, _ = next(batches_of(images, 1, 1))
    np.testing.assert_array_equal(turned, plain[:, :, ::-1])


# The stream of training samples -------------------------------------------------------------------


def test_every_epoch_visits_every_sample_once_and_seeds_differ() -> None:
    stream = SampleStream(seed=5, size=20)
    epochs = [stream.take(20 * epoch, 20)[0] for epoch in range(3)]
    assert all(sorted(epoch) == list(range(20)) for epoch in epochs)
    assert not np.array_equal(epochs[0], epochs[1])
    first, again, other = (SampleStream(seed, 50).take(0, 50) for seed in (1, 1, 2))
    assert np.array_equal(first[0], again[0])
    assert not np.array_equal(first[0], other[0])
    assert set(SampleStream(1, 500).take(0, 500)[1]) == set(range(8))


@given(first=st.integers(0, 200), cuts=st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_the_stream_does_not_depend_on_how_it_is_cut(first: int, cuts: list[int]) -> None:
    stream = SampleStream(seed=5, size=17)
    whole = stream.take(first, sum(cuts))
    position, parts = first, []
    for cut in cuts:
        parts.append(stream.take(position, cut))
        position += cut
    for column in (0, 1):
        assert np.array_equal(whole[column], np.concatenate([part[column] for part in parts]))
