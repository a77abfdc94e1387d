"""Trios of shapes, of which two stand near each other and the third apart: pictures for mini scale.

A class is the pair that stands together: ten classes of five shapes. Whoever knows which three are
in a picture can only guess one of three pairs. All three lie on one circle about the middle,
turned by any angle, so no place of a picture says anything, and no window smaller than the gap
between two shapes holds what makes the class: it is learnt layer on layer. In two of five pictures
the third is missing, which teaches the shapes early. Colours, brightness and noise do not depend on
the class. The mini scales of resnet50 and kfac tell these pictures, and that of chest_xray starts
from a network that does.

Picture ``i`` of a class is a function of (seed, class, i) only.
"""

import math
from collections.abc import Iterator
from itertools import combinations

import numpy as np

from cepheid.reference.data.image_files.drawn import Picture
from cepheid.reference.data.image_files.shapes import Placed

GENERATOR_VERSION = 1  # to be raised by every change that draws other pictures
KINDS = ("bar", "dot", "plus", "ring", "triangle")
PAIRS = tuple(combinations(KINDS, 2))
CLASSES = tuple("_".join(pair) for pair in PAIRS)
PIXELS = 52
RADIUS, OWN_SIZE = (5.7, 6.6), (0.93, 1.07)  # pixels, of all shapes of a picture; times, of each
STRETCH = (0.9, 1.11)
CIRCLE, BESIDE = (15.2, 16.8), 0.7  # pixels: on which they lie, and how far from it at most
SHIFT = 1.5  # pixels of the circle from the middle
NEAR_HALF, LONE = (33.0, 39.0), 14.0  # degrees: half the angle between the near two; of the third
ABSENT = 0.4  # share of pictures without the third
CONTRAST, TINT = (70.0, 98.0), 30.0  # levels: of a shape over the ground, of its colour
GROUND, SLOPE, NOISE = (70.0, 185.0), 40.0, (2.0, 6.0)  # levels


def draw_picture(seed: int, picture: Picture) -> np.ndarray:
    """Draw a picture before compression, uint8 (PIXELS, PIXELS, 3)."""
    random = np.random.default_rng(
        np.random.SeedSequence([seed, GENERATOR_VERSION, picture.label, picture.number])
    )
    ground = random.uniform(*GROUND, size=3)
    y, x = np.mgrid[0:PIXELS, 0:PIXELS] / PIXELS - 0.5
    slope = random.uniform(-SLOPE, SLOPE, size=(2, 3))
    image = ground + x[:, :, None] * slope[0] + y[:, :, None] * slope[1]
    for placed in place_shapes(random, PAIRS[picture.label]):
        tint = random.uniform(-TINT, TINT, size=3)
        ink = ground + random.uniform(*CONTRAST) + tint - tint.mean()
        window, cover = placed.cover(PIXELS, PIXELS)
        image[window] += cover[:, :, None] * (ink - image[window])
    image += random.uniform(*NOISE) * random.standard_normal(image.shape)
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)


def place_shapes(random: np.random.Generator, pair: tuple[str, str]) -> Iterator[Placed]:
    """Yield the near two and, mostly, the third on the other side of the circle."""
    third = str(random.choice([kind for kind in KINDS if kind not in pair]))
    half, whole = random.uniform(*NEAR_HALF), random.uniform(0, 360)
    places = dict(zip(random.permutation(pair).tolist(), (-half, half), strict=True))
    if random.random() >= ABSENT:
        places[third] = 180 + random.uniform(-LONE, LONE)
    circle, radius = random.uniform(*CIRCLE), random.uniform(*RADIUS)
    middle = PIXELS / 2 + random.uniform(-SHIFT, SHIFT, size=2)
    for kind, place in places.items():
        out, angle = circle + random.uniform(-BESIDE, BESIDE), math.radians(whole + place)
        yield Placed(
            kind,
            middle[0] + out * math.cos(angle),
            middle[1] + out * math.sin(angle),
            radius * random.uniform(*OWN_SIZE),
            random.uniform(0, 2 * math.pi),
            random.uniform(*STRETCH),
        )
