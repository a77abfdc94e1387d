"""The middle of a stamp."""

import numpy as np
import pytest

from cepheid.reference.galaxies.task import crop_middle


@pytest.mark.parametrize(("width", "pixels"), [(64, 32), (64, 64), (7, 3)])
def test_what_is_in_the_middle_stays_there(width: int, pixels: int) -> None:
    axis = np.arange(width) - (width - 1) / 2
    images = np.broadcast_to(axis, (2, 6, width, width))
    kept = crop_middle(images, pixels)
    assert kept.shape == (2, 6, pixels, pixels)
    assert np.array_equal(kept[0, 0, 0], np.arange(pixels) - (pixels - 1) / 2)
    assert np.array_equal(crop_middle(images.swapaxes(2, 3), pixels)[1, 5, :, 0], kept[0, 0, 0])


def test_it_is_a_view() -> None:
    images = np.zeros((1, 1, 4, 4))
    crop_middle(images, 2)[...] = 1
    assert images.sum() == 4
