"""The drawn pictures: the same ones everywhere, and of each class what makes it."""

import hashlib
import math
from itertools import product

import numpy as np
import pytest

from cepheid.reference.data.image_files import trios, wallpapers
from cepheid.reference.data.image_files.drawn import Picture, encode_picture
from cepheid.reference.data.image_files.shapes import Placed

SETS = {"shapes": wallpapers, "trios": trios}


@pytest.mark.parametrize(
    ("name", "recorded"),
    [
        ("shapes", "8dc809a01150f10731b65073461fe25302477719630be0623438aa7182153aba"),
        ("trios", "f422fbbd516cbe98ebb97d7b0ebbf7f07dc162c17621682c30ecb0d52a024726"),
    ],
)
def test_pictures_are_the_recorded_ones_and_each_is_another(name: str, recorded: str) -> None:
    """Other bytes need another GENERATOR_VERSION, and another data_digest in the definition."""
    drawn, labels = SETS[name], range(len(SETS[name].CLASSES))
    files = [encode_picture(drawn.draw_picture(20260101, Picture(label, 7))) for label in labels]
    assert hashlib.sha256(b"".join(files)).hexdigest() == recorded
    asked = [(seed, Picture(*each)) for seed in (1, 2) for each in product(labels, range(3))]
    pictures = {drawn.draw_picture(*each).tobytes() for each in asked}
    assert len(pictures) == 2 * len(labels) * 3


def test_sizes_colours_and_places_of_wallpapers_vary() -> None:
    count = len(wallpapers.CLASSES)
    pictures = [wallpapers.draw_picture(1, Picture(n % count, n)) for n in range(60)]
    sides = np.array([picture.shape[:2] for picture in pictures])
    assert sides.min() >= wallpapers.SMALLEST_PIXELS
    assert sides.max() <= wallpapers.LARGEST_PIXELS
    assert len({tuple(side) for side in sides}) > 40
    means = np.array([picture.mean((0, 1)) for picture in pictures])
    assert (means.std(axis=0) > 30).all()


def test_the_pair_of_a_trio_is_near_and_the_third_apart() -> None:
    """The windows that hold a shape of each are wide: more than a patch of 15 pixels sees."""
    seen = set()
    for seed in range(300):
        first, second, *third = trios.place_shapes(np.random.default_rng(seed), ("dot", "ring"))
        assert {first.shape, second.shape} == {"dot", "ring"}
        assert 14 < _measure_distance(first, second) < 23
        for lone in third:
            assert min(_measure_distance(lone, near) for near in (first, second)) > 24
            seen.add(lone.shape)
        places = [(each.across, each.down, each.radius) for each in (first, second, *third)]
        assert all(min(x, y) - r > 0 and max(x, y) + r < trios.PIXELS for x, y, r in places)
    assert seen == {"bar", "plus", "triangle"}


def _measure_distance(a: Placed, b: Placed) -> float:
    return math.hypot(a.across - b.across, a.down - b.down)
