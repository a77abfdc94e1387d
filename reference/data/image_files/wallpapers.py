"""Wallpapers of simple shapes, one for each class: pictures that settings were compared on.

Each picture is a wallpaper: one shape, repeated on a lattice of any scale, turned by any angle,
stretched a little, in any two colours, light on dark or dark on light, on a background with a
gradient, stripes and blots, behind noise. What class it is of shows in every part of it, as crops
of a tenth of an ImageNet photograph mostly still do; no pixel by itself says anything.

Picture ``i`` of a class is a function of (seed, class, i) only.
"""

import math

import numpy as np

from cepheid.reference.data.image_files.drawn import Picture
from cepheid.reference.data.image_files.shapes import SHAPES, SUPERSAMPLING, Grid, rotate

GENERATOR_VERSION = 1  # to be raised by every change that draws other pictures
CLASSES = (
    *("arch", "bars", "crescent", "disc", "frame", "letter_t"),
    *("plus", "ring", "square", "star", "triangle", "two_discs"),
)
SMALLEST_PIXELS, LARGEST_PIXELS = 64, 96
RADIUS = (0.16, 0.32)  # of a shape, in shorter sides of the picture
PERIOD = 2.3  # of the lattice, in radii
BLOTS = 4


def draw_picture(seed: int, picture: Picture) -> np.ndarray:
    """Draw the picture before compression, uint8 (height, width, 3)."""
    random = np.random.default_rng(
        np.random.SeedSequence([seed, GENERATOR_VERSION, picture.label, picture.number])
    )
    height, width = random.integers(SMALLEST_PIXELS, LARGEST_PIXELS, size=2, endpoint=True)
    ground, ink = _draw_colours(random)
    cover = _cover_with(random, CLASSES[picture.label], int(height), int(width))
    image = _draw_texture(random, ground, int(height), int(width))
    image += cover[:, :, None] * (_draw_texture(random, ink, int(height), int(width)) - image)
    image += random.uniform(2, 9) * random.standard_normal(image.shape)
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)


def _draw_colours(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw two colours that differ clearly, (3,) each."""
    while True:
        ground, ink = random.uniform(20, 235, size=(2, 3))
        if np.abs(ground - ink).sum() > 240:
            return ground, ink


def _draw_texture(
    random: np.random.Generator, colour: np.ndarray, height: int, width: int
) -> np.ndarray:
    """Draw a colour with a gradient, stripes and blots, float64 (height, width, 3)."""
    y, x = np.mgrid[0:height, 0:width] / max(height, width) - 0.5
    image = np.empty((height, width, 3))
    image[:] = colour
    slope = random.uniform(-40, 40, size=(2, 3))
    image += x[:, :, None] * slope[0] + y[:, :, None] * slope[1]
    along = rotate(x, y, random.uniform(0, 2 * math.pi))[0] * random.uniform(2, 9)
    wave = np.abs(along - np.floor(along) - 0.5) * 4 - 1
    image += wave[:, :, None] * random.uniform(-18, 18, size=3)
    for _ in range(BLOTS):
        centre_x, centre_y, radius = random.uniform([-0.6, -0.6, 0.05], [0.6, 0.6, 0.25])
        near = np.maximum(0, 1 - ((x - centre_x) ** 2 + (y - centre_y) ** 2) / radius**2)
        image += near[:, :, None] * random.uniform(-35, 35, size=3)
    return image


def _cover_with(random: np.random.Generator, label: str, height: int, width: int) -> np.ndarray:
    """Return the share of each pixel that the shapes of a class cover, (height, width)."""
    radius = min(height, width) * random.uniform(*RADIUS)
    centre_x, centre_y = random.uniform(0, width), random.uniform(0, height)
    y, x = np.mgrid[0 : height * SUPERSAMPLING, 0 : width * SUPERSAMPLING] / SUPERSAMPLING
    across, down = rotate(x - centre_x, y - centre_y, random.uniform(0, 2 * math.pi))
    stretch = random.uniform(0.85, 1.18)
    across, down = across / radius * stretch, down / radius / stretch
    points = SHAPES[label](_fold_into_cell(across), _fold_into_cell(down)).astype(float)
    fine = points.reshape(height, SUPERSAMPLING, width, SUPERSAMPLING)
    return np.asarray(fine.mean(axis=(1, 3)))


def _fold_into_cell(coordinate: Grid) -> Grid:
    """Return the coordinate of a point from the centre of its cell of the lattice."""
    cells = coordinate / PERIOD
    return (cells - np.floor(cells) - 0.5) * PERIOD
