"""Which parts of images are seen."""

import math
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cepheid.reference.data.image_files import crops
from cepheid.reference.data.imagenet import Images
from cepheid.reference.data.order import SampleStream

CROPPING = crops.Cropping(224, 256)


def images_of(widths: Any, heights: Any) -> Images:
    sizes = {"widths": np.array(widths), "heights": np.array(heights)}
    return cast(Images, SimpleNamespace(train_samples=len(widths), **sizes))


sides = st.lists(st.integers(1, 5000), min_size=1, max_size=30)


@given(sides=sides, seed=st.integers(0, 99), first=st.integers(0, 1000))
def test_training_part_lies_within_the_image(sides: list[int], seed: int, first: int) -> None:
    images = images_of(sides, sides[::-1])
    views = crops.make_training_views(images, CROPPING, SampleStream(seed, len(sides)), first, 50)
    left, top, right, bottom = views.boxes.T
    assert (left >= 0).all()
    assert (top >= 0).all()
    assert (right <= images.widths[views.rows]).all()
    assert (bottom <= images.heights[views.rows]).all()
    assert (right > left).all()
    assert (bottom > top).all()


@given(
    seed=st.integers(0, 9),
    first=st.integers(0, 2000),
    count=st.integers(2, 600),
    cut=st.floats(0, 1),
)
def test_a_position_looks_the_same_however_it_is_asked_for(
    seed: int, first: int, count: int, cut: float
) -> None:
    images = images_of(np.arange(60, 160), np.arange(200, 100, -1))
    stream = SampleStream(seed, 100)
    middle = 1 + int(cut * (count - 2))
    whole = crops.make_training_views(images, CROPPING, stream, first, count)
    head = crops.make_training_views(images, CROPPING, stream, first, middle)
    tail = crops.make_training_views(images, CROPPING, stream, first + middle, count - middle)
    for name in ("rows", "boxes", "mirrored"):
        parts = [getattr(head, name), getattr(tail, name)]
        np.testing.assert_array_equal(getattr(whole, name), np.concatenate(parts))


def test_shares_of_area_and_aspects_are_drawn_evenly_within_their_bounds() -> None:
    images = images_of([2000] * 500, [2000] * 500)
    views = crops.make_training_views(images, CROPPING, SampleStream(1, 500), 0, 20_000)
    left, top, right, bottom = views.boxes.T
    width, height = right - left, bottom - top
    areas, aspects = width * height / 2000**2, width / height
    assert areas.min() >= 0.079
    assert 3 / 4 - 0.01 < aspects.min() < aspects.max() < 4 / 3 + 0.01
    small = areas < 0.5  # where no draw is refused for lack of room
    assert np.quantile(areas[small], 0.5) == pytest.approx((0.08 + 0.5) / 2, abs=0.01)
    assert np.log(aspects[small]).mean() == pytest.approx(0, abs=0.01)
    spread = math.log(4 / 3) / math.sqrt(3)
    assert np.log(aspects[small]).std() == pytest.approx(spread, rel=0.03)
    assert views.mirrored.mean() == pytest.approx(0.5, abs=0.02)
    free = width < 1000  # their places are uniform
    assert (left[free] / (2000 - width[free])).mean() == pytest.approx(0.5, abs=0.02)
    free = height < 1000
    evenly = 1 / math.sqrt(12)
    assert (top[free] / (2000 - height[free])).std() == pytest.approx(evenly, abs=0.02)


def test_every_epoch_looks_elsewhere() -> None:
    images = images_of([100] * 40, [80] * 40)
    stream = SampleStream(1, 40)
    seen = []
    for epoch in range(2):
        views = crops.make_training_views(images, CROPPING, stream, epoch * 40, 40)
        order = np.argsort(views.rows)
        np.testing.assert_array_equal(views.rows[order], np.arange(40))
        seen.append(views.boxes[order])
    assert (seen[0] != seen[1]).any(axis=1).sum() > 30


@pytest.mark.parametrize(("width", "height"), [(5000, 3), (3, 5000), (1, 1)])
def test_narrow_image_is_seen_in_its_centre(width: int, height: int) -> None:
    whole = crops.Cropping(224, 256, area=(1.0, 1.0))
    views = crops.make_training_views(images_of([width], [height]), whole, SampleStream(1, 1), 0, 1)
    left, top, right, bottom = views.boxes[0]
    assert (right - left, bottom - top) == (min(width, 4), min(height, 4))
    assert abs(left - (width - right)) <= 1
    assert abs(top - (height - bottom)) <= 1


def test_evaluation_sees_the_centre() -> None:
    images = images_of([500, 256, 64], [375, 256, 96])
    views = crops.make_evaluation_views(images, CROPPING, np.arange(3))
    assert views.boxes.tolist() == [
        [86, 23, 414, 351],  # 328 = 375 · 224/256
        [16, 16, 240, 240],
        [4, 20, 60, 76],
    ]
    assert not views.mirrored.any()
