"""Batches of images with boxes: the same for any number of ranks and workers, and cut as told."""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image

from cepheid.reference.data.detection import crops
from cepheid.reference.data.detection.colours import Strengths, change_colours, draw_jitter
from cepheid.reference.data.detection.loader import (
    Augmentation,
    Loader,
    find_pixels,
    turn_boxes,
    turn_image,
    turn_masks,
)
from cepheid.reference.data.order import ORIENTATIONS, SampleStream, Share

TRAIN, EVALUATION, MOST = 30, 7, 3
BATCH = 12
PLAIN = Augmentation(32, has_parts=False)
ALL = Augmentation(32, most_tries=3, strengths=Strengths(0.1, 0.5, 0.5, 0.05))


@dataclass(frozen=True)
class Rectangles:
    """Images of many sizes with a bright rectangle of its own colour in each box."""

    train_samples: int = TRAIN
    evaluation_samples: int = EVALUATION

    def read_image(self, row: int) -> np.ndarray:
        return draw_image(row)

    def read_boxes(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        boxes = np.zeros((len(rows), MOST, 4), np.float32)
        labels = np.zeros((len(rows), MOST), np.int64)
        for place, row in enumerate(rows):
            random = np.random.default_rng([1, row])
            for k in range(int(random.integers(0, MOST + 1))):
                corner, side = random.uniform(0, 0.5, size=2), random.uniform(0.2, 0.5, size=2)
                boxes[place, k] = [*corner, *(corner + side)]
                labels[place, k] = k + 1
        return boxes, labels


@cache
def draw_image(row: int) -> np.ndarray:
    random = np.random.default_rng(row)
    height, width = random.integers(40, 90, size=2)
    image = random.integers(0, 60, size=(height, width, 3)).astype(np.uint8)
    boxes, labels = Rectangles().read_boxes(np.array([row]))
    for box, label in zip(boxes[0], labels[0], strict=True):
        left, top, right, bottom = np.rint(box * [width, height, width, height]).astype(int)
        image[top:bottom, left:right, label - 1] = 250
    return image


def load(share: Share, augmentation: Augmentation = ALL, workers: int = 1) -> Loader:
    return Loader(Rectangles(), augmentation, 5, share, workers)


@pytest.mark.parametrize(("ranks", "workers"), [(1, 3), (2, 1), (4, 2)])
def test_batches_do_not_depend_on_ranks_and_workers(ranks: int, workers: int) -> None:
    whole = load(Share(0, 1, BATCH))
    parts = [load(Share(rank, ranks, BATCH // ranks), ALL, workers) for rank in range(ranks)]
    for samples in (0, 5 * BATCH):
        batches = [part.next_batch(samples) for part in parts]
        for one, several in zip(whole.next_batch(samples), zip(*batches, strict=True), strict=True):
            assert torch.equal(one, torch.cat(several))
    first, second = (load(Share(rank, 2, 4, 2)) for rank in range(2))  # that share images
    assert torch.equal(first.next_batch(0)[0], second.next_batch(0)[0])
    for loader in (whole, *parts, first, second):
        loader.close()


def test_a_batch_is_what_pillow_makes_step_by_step() -> None:
    """Cut, mirrored, resized; colours are tested elsewhere, and here without them."""
    loader = load(Share(0, 1, BATCH), replace(ALL, strengths=Strengths()))
    images, boxes, labels = loader.next_batch(BATCH)
    loader.close()
    rows, codes = SampleStream(5, TRAIN).take(BATCH, BATCH)
    whole_boxes, whole_labels = Rectangles().read_boxes(rows)
    parts = crops.draw_parts(whole_boxes, whole_labels, 5, BATCH, 3)
    cut, kept = crops.cut_boxes(whole_boxes, whole_labels, parts)
    assert 1 < np.all(parts == crops.WHOLE, axis=1).sum() < BATCH
    for k, row in enumerate(rows):
        picture = Image.fromarray(Rectangles().read_image(int(row)))
        picture = picture.crop(find_pixels(parts[k], picture.height, picture.width))
        if codes[k] & 1:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            cut[k, :, [0, 2]] = 1 - cut[k, :, [2, 0]]
        expected = np.asarray(picture.resize((32, 32), Image.Resampling.BILINEAR)).astype(int)
        assert np.abs(images[k].numpy() - expected).max() <= 2
        np.testing.assert_allclose(boxes[k], cut[k] * (kept[k] > 0)[:, None], atol=1e-6)
    np.testing.assert_array_equal(labels, kept)


def test_colours_are_those_of_the_position() -> None:
    plain, coloured = (
        load(Share(0, 1, BATCH), each) for each in (replace(ALL, strengths=Strengths()), ALL)
    )
    images = plain.next_batch(24)[0]
    expected = change_colours(images, draw_jitter(ALL.strengths, 5, 24, BATCH))
    assert torch.equal(coloured.next_batch(24)[0], expected)
    assert not torch.equal(expected, images)
    plain.close()
    coloured.close()


@pytest.mark.parametrize("augmentation", [PLAIN, replace(PLAIN, has_orientations=True)])
def test_boxes_hold_their_rectangles(augmentation: Augmentation) -> None:
    loader = load(Share(0, 1, TRAIN), augmentation)
    images, boxes, labels = loader.next_batch(0)
    loader.close()
    for image, own, of_own in zip(images, boxes, labels, strict=True):
        for box, label in zip(own, of_own, strict=True):
            if label == 0:
                assert not box.any()
                continue
            y, x = np.nonzero(image[:, :, label - 1].numpy() > 150)
            found = np.array([x.min(), y.min(), x.max() + 1, y.max() + 1]) / 32
            np.testing.assert_allclose(box, found, atol=1.6 / 32)


def test_every_orientation_is_another_one_and_turns_boxes_alike() -> None:
    image = torch.zeros(8, 8, 3, dtype=torch.uint8)
    image[1:3, 2:7] = 9
    image[2, 2] = 0
    box, labels = np.array([[[2, 1, 7, 3]]], np.float32) / 8, np.ones((1, 1), int)
    seen = set()
    for code in range(ORIENTATIONS):
        turned = turn_image(image, code)
        seen.add(turned.numpy().tobytes())
        y, x = np.nonzero(turned[..., 0].numpy())
        found = [x.min() / 8, y.min() / 8, (x.max() + 1) / 8, (y.max() + 1) / 8]
        np.testing.assert_allclose(turn_boxes(box, labels, np.array([code]))[0, 0], found)
    assert len(seen) == ORIENTATIONS


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_evaluation_sees_every_image_once_and_whole(ranks: int) -> None:
    seen: list[int] = []
    for rank in range(ranks):
        loader = load(Share(rank, ranks, 4))
        for images, numbers, valid in loader.evaluation_batches(2):
            assert images.shape == (2, 32, 32, 3)
            seen += numbers[valid].tolist()
            whole = Image.fromarray(Rectangles().read_image(TRAIN + int(numbers[0])))
            expected = np.asarray(whole.resize((32, 32), Image.Resampling.BILINEAR)).astype(int)
            assert np.abs(images[0].numpy() - expected).max() <= 2
        loader.close()
    assert sorted(seen) == list(range(EVALUATION))


# Masks, and images that keep their aspect --------------------------------------------------------


@dataclass(frozen=True)
class Masked(Rectangles):
    """The same images; the mask of an object is its box but for the upper left quarter."""

    def read_sizes(self, rows: np.ndarray) -> np.ndarray:
        return np.array([draw_image(row).shape[:2] for row in rows.tolist()])

    def read_mask_crops(self, rows: np.ndarray, size: int) -> np.ndarray:
        masks = np.ones((len(rows), MOST, size, size), np.uint8)
        masks[:, :, : size // 2, : size // 2] = 0
        return masks * (self.read_boxes(rows)[1] > 0)[..., None, None].astype(np.uint8)


@pytest.mark.parametrize("code", range(ORIENTATIONS))
def test_masks_are_turned_as_images(code: int) -> None:
    masks = (np.random.default_rng(1).random((2, 3, 6, 6)) < 0.5).astype(np.uint8)
    turned = turn_masks(masks, np.array([0, code]))
    assert np.array_equal(turned[0], masks[0])
    for mask, found in zip(masks[1], turned[1], strict=True):
        image = turn_image(torch.from_numpy(mask)[:, :, None].expand(-1, -1, 3), code)
        assert np.array_equal(found, image[..., 0].numpy())


def test_images_that_keep_their_aspect_fill_a_part_of_the_square() -> None:
    chosen = Augmentation(48, has_parts=False, mask_pixels=4, sides=(30, 44), filling=(7, 8, 9))
    loader = Loader(Masked(), chosen, 3, Share(0, 1, BATCH), 2)
    images, boxes, labels, masks, extents = loader.next_batch(0)
    rows, codes = SampleStream(3, TRAIN).take(0, BATCH)
    for number, (row, code) in enumerate(zip(rows, codes & 1, strict=True)):
        image = draw_image(row)
        height, width = image.shape[:2]
        scale = min(30 / min(height, width), 44 / max(height, width))
        across, down = round(width * scale), round(height * scale)
        assert extents[number].tolist() == [across, down]
        resized = Image.fromarray(image).resize((across, down), Image.Resampling.BILINEAR)
        expected = np.asarray(resized)[:, :: -1 if code else 1]
        found = images[number].numpy().astype(int)
        assert np.abs(found[:down, :across] - expected).max() <= 1
        assert (found[down:] == [7, 8, 9]).all()
        assert (found[:, across:] == [7, 8, 9]).all()
        half = masks[number][labels[number] > 0]
        assert not half[:, :2, 2:].any() if code else not half[:, :2, :2].any()
        for box, label in zip(boxes[number], labels[number], strict=True):
            if label:
                x = int((box[0] + box[2]) / 2 * across)
                y = int((box[1] + box[3]) / 2 * down)
                assert found[y, x, label - 1] > 150
    (evaluated, _, _), *_ = loader.evaluation_batches(4)
    width, height = loader.find_extents(np.arange(TRAIN, TRAIN + 4))[0]
    assert (evaluated[0, height:] == torch.tensor([7, 8, 9])).all()
    assert (evaluated[0, :, width:] == torch.tensor([7, 8, 9])).all()
    loader.close()
