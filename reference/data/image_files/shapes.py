"""Shapes of which pictures are drawn, and one of them in its place.

What is computed per pixel uses additions, multiplications, comparisons and square roots alone,
which give the same bits everywhere.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SUPERSAMPLING = 2
REACH = 1.25  # of a shape that is stretched, in radii

Grid = NDArray[np.float64]
Mask = NDArray[np.bool_]
Inside = Callable[[Grid, Grid], Mask]
"""Whether points (x, y) lie in a shape that about fills the circle of radius 1."""


@dataclass(frozen=True)
class Placed:
    """One shape in a picture: where its centre is and how large it is, in pixels; its angle."""

    shape: str
    across: float
    down: float
    radius: float
    angle: float
    stretch: float  # of its width; its height has the inverse

    def cover(self, height: int, width: int) -> tuple[tuple[slice, slice], np.ndarray]:
        """Return a window of the picture, and the share of each of its pixels that is covered.

        Pictures are (``height``, ``width``) pixels; the share is (rows, columns) of the window.
        """
        reach = REACH * self.radius
        top, left = (max(0, math.floor(middle - reach)) for middle in (self.down, self.across))
        bottom = max(top, min(height, math.ceil(self.down + reach)))
        right = max(left, min(width, math.ceil(self.across + reach)))
        y = np.arange(top * SUPERSAMPLING, bottom * SUPERSAMPLING)[:, None] + 0.5
        x = np.arange(left * SUPERSAMPLING, right * SUPERSAMPLING) + 0.5
        turned = rotate(x / SUPERSAMPLING - self.across, y / SUPERSAMPLING - self.down, self.angle)
        size = self.radius * self.stretch, self.radius / self.stretch
        points = SHAPES[self.shape](turned[0] / size[0], turned[1] / size[1]).astype(float)
        fine = points.reshape(bottom - top, SUPERSAMPLING, right - left, SUPERSAMPLING)
        return np.s_[top:bottom, left:right], np.asarray(fine.mean(axis=(1, 3)))


def rotate(x: Grid, y: Grid, angle: float) -> tuple[Grid, Grid]:
    """Return coordinates along axes that are turned by ``angle``, in radians."""
    cosine, sine = math.cos(angle), math.sin(angle)
    return cosine * x + sine * y, cosine * y - sine * x


# The shapes ---------------------------------------------------------------------------------------


def _star(x: Grid, y: Grid) -> Mask:
    """Return True inside at least four of the five half planes of a pentagram."""
    count = np.zeros(x.shape, int)
    for point in range(5):
        angle = 2 * math.pi * point / 5
        count += math.cos(angle) * x + math.sin(angle) * y < math.cos(2 * math.pi / 5)
    return (count >= 4) & (x * x + y * y < 1.01)


def _frame(x: Grid, y: Grid) -> Mask:
    distance = np.maximum(np.abs(x), np.abs(y))
    return (distance < 0.8) & (distance > 0.45)


def _plus(x: Grid, y: Grid) -> Mask:
    thick, long = np.minimum(np.abs(x), np.abs(y)), np.maximum(np.abs(x), np.abs(y))
    return (thick < 0.24) & (long < 0.95)


def _letter_t(x: Grid, y: Grid) -> Mask:
    top = (np.abs(x) < 0.8) & (y > -0.85) & (y < -0.4)
    return top | ((np.abs(x) < 0.23) & (y > -0.5) & (y < 0.9))


def _bars(x: Grid, y: Grid) -> Mask:
    """Return True inside three parallel bars."""
    return (np.abs(y) < 0.8) & (np.abs(x) < 0.85) & ((np.abs(x) < 0.17) | (np.abs(x) > 0.51))


SHAPES: dict[str, Inside] = {
    "arch": lambda x, y: _frame(x, y) & ~((np.abs(x) < 0.45) & (y > 0)),  # three sides
    "bar": lambda x, y: (np.abs(x) < 0.27) & (np.abs(y) < 1.05),
    "bars": _bars,
    "crescent": lambda x, y: (x * x + y * y < 0.95) & ((x - 0.55) ** 2 + y * y > 0.7),
    "disc": lambda x, y: x * x + y * y < 0.75,
    "dot": lambda x, y: x * x + y * y < 0.22,
    "frame": _frame,
    "letter_t": _letter_t,
    "plus": _plus,
    "ring": lambda x, y: (x * x + y * y < 0.95) & (x * x + y * y > 0.3),
    "square": lambda x, y: np.maximum(np.abs(x), np.abs(y)) < 0.75,
    "star": _star,
    "triangle": lambda x, y: (y > -0.5) & (y + math.sqrt(3) * np.abs(x) < 1),
    "two_discs": lambda x, y: (np.abs(x) - 0.52) ** 2 + y * y < 0.18,
}
