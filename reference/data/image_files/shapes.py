"""Pictures of simple shapes, in the folder layout of ImageNet: data for the mini scale.

Each picture is a wallpaper: one shape, repeated on a lattice of any scale, turned by any angle,
stretched a little, in any two colours, light on dark or dark on light, on a background with a
gradient, stripes and blots, behind noise. What class it is of shows in every part of it, as crops
of a tenth of an ImageNet photograph mostly still do; no pixel by itself says anything. Of the
pixels a linear model learns next to nothing; a small convolutional network learns the shapes
(measured in ``tests/reference/data/image_files/test_shapes.py``).

Picture ``i`` of a class is a function of (seed, class, i) only. What is computed per pixel uses
additions, multiplications, comparisons and square roots alone, which give the same bits everywhere.
"""

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cepheid.reference.data.disk import explain_disk_errors
from cepheid.reference.data.store import OnProgress
from cepheid.reference.data.workers import map_in_processes
from cepheid.rules.host import atomic_path

GENERATOR_VERSION = 1  # to be raised by every change that draws other pictures

SMALLEST_PIXELS, LARGEST_PIXELS = 64, 96
JPEG_QUALITY = 85
SUPERSAMPLING = 2
RADIUS = (0.16, 0.32)  # of a shape, in shorter sides of the picture
PERIOD = 2.3  # of the lattice, in radii
BLOTS = 4
PIECE = 100  # files that a process draws at a time

Grid = NDArray[np.float64]
Mask = NDArray[np.bool_]
Inside = Callable[[Grid, Grid], Mask]
"""Whether points (x, y) lie in a shape that about fills the circle of radius 1."""


@dataclass(frozen=True)
class Picture:
    """One picture of the set: its class, and which of that class."""

    label: int
    number: int


def draw_files(
    folder: Path,
    seed: int,
    classes: Sequence[str],
    samples: dict[str, int],
    processes: int | None,
    on_progress: OnProgress,
) -> None:
    """Draw the pictures of all parts into ``folder``; existing files are kept.

    Each part has ``samples[part]`` pictures ``<part>/<class>/<class>_<number>.JPEG``, the classes
    in turn. ``on_progress`` is called with the files written and the total. Raises StoreError if
    they cannot be written or a process is killed.
    """
    parts = [part for part, count in samples.items() for _ in range(count)]
    with explain_disk_errors(folder):
        for part in samples:
            for name in classes:
                (folder / part / name).mkdir(parents=True, exist_ok=True)
        draw = partial(_draw_piece, folder, seed, classes, parts)
        done = 0
        pieces = range(-(-len(parts) // PIECE))
        for _, count in map_in_processes(draw, pieces, processes, folder):
            done += count
            on_progress(done, len(parts))


def _draw_piece(
    folder: Path, seed: int, classes: Sequence[str], parts: Sequence[str], piece: int
) -> int:
    rows = range(piece * PIECE, min((piece + 1) * PIECE, len(parts)))
    for row in rows:
        label, number = row % len(classes), row // len(classes)
        path = folder / parts[row] / classes[label] / f"{classes[label]}_{number:05}.JPEG"
        if not path.exists():
            with atomic_path(path, sync=False) as temporary:
                temporary.write_bytes(encode_picture(seed, Picture(label, number)))
    return len(rows)


def encode_picture(seed: int, picture: Picture) -> bytes:
    """Return the picture as a JPEG file."""
    pixels = draw_picture(seed, picture)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=JPEG_QUALITY, subsampling=2)
    return file.getvalue()


def draw_picture(seed: int, picture: Picture) -> np.ndarray:
    """Draw the picture before compression, uint8 (height, width, 3)."""
    random = np.random.default_rng(
        np.random.SeedSequence([seed, GENERATOR_VERSION, picture.label, picture.number])
    )
    height, width = random.integers(SMALLEST_PIXELS, LARGEST_PIXELS, size=2, endpoint=True)
    ground, ink = _draw_colours(random)
    cover = cover_with(random, CLASSES[picture.label], int(height), int(width), RADIUS)
    image = _draw_texture(random, ground, int(height), int(width))
    image += cover[:, :, None] * (_draw_texture(random, ink, int(height), int(width)) - image)
    image += random.uniform(2, 9) * random.standard_normal(image.shape)
    clipped: np.ndarray = np.clip(np.rint(image), 0, 255).astype(np.uint8)
    return clipped


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
    along = _rotate(x, y, random.uniform(0, 2 * math.pi))[0] * random.uniform(2, 9)
    wave = np.abs(along - np.floor(along) - 0.5) * 4 - 1
    image += wave[:, :, None] * random.uniform(-18, 18, size=3)
    for _ in range(BLOTS):
        centre_x, centre_y, radius = random.uniform([-0.6, -0.6, 0.05], [0.6, 0.6, 0.25])
        near = np.maximum(0, 1 - ((x - centre_x) ** 2 + (y - centre_y) ** 2) / radius**2)
        image += near[:, :, None] * random.uniform(-35, 35, size=3)
    return image


def cover_with(
    random: np.random.Generator, shape: str, height: int, width: int, radii: tuple[float, float]
) -> np.ndarray:
    """Return the share of each pixel that a wallpaper of one shape covers, (height, width).

    ``radii`` are the smallest and the largest radius, in shorter sides of the picture.
    """
    inside, side = SHAPES[shape], min(height, width)
    radius = side * random.uniform(*radii)
    centre_x, centre_y = random.uniform(0, width), random.uniform(0, height)
    y, x = np.mgrid[0 : height * SUPERSAMPLING, 0 : width * SUPERSAMPLING] / SUPERSAMPLING
    across, down = _rotate(x - centre_x, y - centre_y, random.uniform(0, 2 * math.pi))
    stretch = random.uniform(0.85, 1.18)
    across, down = (
        _fold_into_cell(across / radius * stretch),
        _fold_into_cell(down / radius / stretch),
    )
    points = inside(across, down).astype(float)
    fine = points.reshape(height, SUPERSAMPLING, width, SUPERSAMPLING)
    return np.asarray(fine.mean(axis=(1, 3)))


def _fold_into_cell(coordinate: Grid) -> Grid:
    """Return the coordinate of a point from the centre of its cell of the lattice."""
    cells = coordinate / PERIOD
    return (cells - np.floor(cells) - 0.5) * PERIOD


def _rotate(x: Grid, y: Grid, angle: float) -> tuple[Grid, Grid]:
    cosine, sine = math.cos(angle), math.sin(angle)
    return cosine * x + sine * y, cosine * y - sine * x


# The shapes ---------------------------------------------------------------------------------------


def _disc(x: Grid, y: Grid) -> Mask:
    return x * x + y * y < 0.75


def _ring(x: Grid, y: Grid) -> Mask:
    squared = x * x + y * y
    return (squared < 0.95) & (squared > 0.3)


def _square(x: Grid, y: Grid) -> Mask:
    return np.maximum(np.abs(x), np.abs(y)) < 0.75


def _frame(x: Grid, y: Grid) -> Mask:
    distance = np.maximum(np.abs(x), np.abs(y))
    return (distance < 0.8) & (distance > 0.45)


def _triangle(x: Grid, y: Grid) -> Mask:
    return (y > -0.5) & (y + math.sqrt(3) * np.abs(x) < 1)


def _plus(x: Grid, y: Grid) -> Mask:
    thick, long = np.minimum(np.abs(x), np.abs(y)), np.maximum(np.abs(x), np.abs(y))
    return (thick < 0.24) & (long < 0.95)


def _star(x: Grid, y: Grid) -> Mask:
    """Return True inside at least four of the five half planes of a pentagram."""
    count = np.zeros(x.shape, int)
    for point in range(5):
        angle = 2 * math.pi * point / 5
        count += math.cos(angle) * x + math.sin(angle) * y < math.cos(2 * math.pi / 5)
    return (count >= 4) & (x * x + y * y < 1.01)


def _crescent(x: Grid, y: Grid) -> Mask:
    return (x * x + y * y < 0.95) & ((x - 0.55) ** 2 + y * y > 0.7)


def _two_discs(x: Grid, y: Grid) -> Mask:
    return (np.abs(x) - 0.52) ** 2 + y * y < 0.18


def _bars(x: Grid, y: Grid) -> Mask:
    """Return True inside three parallel bars."""
    return (np.abs(y) < 0.8) & (np.abs(x) < 0.85) & ((np.abs(x) < 0.17) | (np.abs(x) > 0.51))


def _arch(x: Grid, y: Grid) -> Mask:
    """Return True on three sides of a frame."""
    return _frame(x, y) & ~((np.abs(x) < 0.45) & (y > 0))


def _letter_t(x: Grid, y: Grid) -> Mask:
    top = (np.abs(x) < 0.8) & (y > -0.85) & (y < -0.4)
    return top | ((np.abs(x) < 0.23) & (y > -0.5) & (y < 0.9))


SHAPES: dict[str, Inside] = {
    "arch": _arch,
    "bars": _bars,
    "crescent": _crescent,
    "disc": _disc,
    "frame": _frame,
    "letter_t": _letter_t,
    "plus": _plus,
    "ring": _ring,
    "square": _square,
    "star": _star,
    "triangle": _triangle,
    "two_discs": _two_discs,
}
CLASSES = tuple(SHAPES)
