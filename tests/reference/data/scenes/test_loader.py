"""Batches of scenes: the same for any number of ranks, and turned together with their boxes."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from reference.data.order import Share
from reference.data.scenes.loader import Loader, orient
from reference.data.scenes.sky import Scenes
from reference.data.store import Manifest


@pytest.fixture(scope="module")
def some_scenes() -> Scenes:
    """Scenes of 16 pixels with one bright rectangle for each box."""
    random = np.random.default_rng(4)
    images = np.zeros((10, 16, 16, 3), np.uint8)
    boxes, labels = np.zeros((10, 2, 4), np.float32), np.zeros((10, 2), np.int64)
    for row in range(10):
        for place in range(1 + row % 2):
            left, top = random.integers(0, 12, size=2)
            across, down = random.integers(1, 5, size=2)
            images[row, top : top + down, left : left + across, place] = 5 + row
            boxes[row, place] = np.array([left, top, left + across, top + down]) / 16
            labels[row, place] = place + 1
    manifest = Manifest("scenes", {}, {}, 10, 250, {}, "")
    return Scenes(7, 3, images, boxes, labels, np.zeros((10, 2)), np.zeros((10, 2, 32)), manifest)


def test_boxes_turn_with_their_images(some_scenes: Scenes) -> None:
    codes = np.arange(10) % 8
    images, boxes = orient(some_scenes.images, some_scenes.boxes, codes)
    assert len({image.tobytes() for image in images}) == 10
    for image, own, labels in zip(images, boxes, some_scenes.labels, strict=True):
        for place in np.flatnonzero(labels):
            y, x = np.nonzero(image[:, :, place])
            found = np.array([x.min(), y.min(), x.max() + 1, y.max() + 1]) / 16
            np.testing.assert_allclose(own[place], found, atol=1e-6)
        assert not own[labels == 0].any()


@pytest.mark.parametrize("code", range(8))
def test_every_orientation_is_another_one(code: int) -> None:
    image = np.arange(9).reshape(1, 3, 3, 1)
    turned = [orient(image, np.zeros((1, 1, 4)), np.array([each]))[0] for each in range(8)]
    assert sum(np.array_equal(turned[code], other) for other in turned) == 1


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_share_the_batches_of_one(some_scenes: Scenes, ranks: int) -> None:
    whole = Loader(some_scenes, 1, Share(0, 1, 8))
    parts = [Loader(some_scenes, 1, Share(rank, ranks, 8 // ranks)) for rank in range(ranks)]
    for samples in (0, 8, 40):
        batches = [part.next_batch(samples) for part in parts]
        for one, several in zip(whole.next_batch(samples), zip(*batches, strict=True), strict=True):
            assert torch.equal(one, torch.cat(several))


def test_partitions_have_the_same_samples(some_scenes: Scenes) -> None:
    first, second = (Loader(some_scenes, 1, Share(rank, 2, 4, 2)) for rank in range(2))
    assert torch.equal(first.next_batch(0)[0], second.next_batch(0)[0])


def test_evaluation_counts_every_scene_once(some_scenes: Scenes) -> None:
    seen: list[int] = []
    for rank in range(2):
        batches = list(Loader(some_scenes, 1, Share(rank, 2, 4)).evaluation_batches(2))
        assert len(batches) == 1
        for images, numbers, valid in batches:
            np.testing.assert_array_equal(images, some_scenes.images[7 + numbers])
            seen += numbers[valid].tolist()
    assert sorted(seen) == [0, 1, 2]
