"""Whether generated images are training images in disguise.

An image is described by what shifts, turns, flips and other fluxes leave alone, in three ways:

look
    colours, size, ellipticity, and how concentrated each band is;
shape
    the same without colours: factors of the bands leave it alone;
form
    ellipticity and concentrations in windows as wide as the galaxy: so does another size.

Descriptions are in standard deviations of the training images. An image is *near* where the
nearest training image is nearer than those of a share ``USUAL`` of the held-out galaxies are. By
chance that holds for as large a share of new galaxies, and for almost every altered copy.
``rules.metrics`` has the interval of the difference. Distances are not whitened: a per cent of
jitter would hide a copy.

Galaxies of one form are common, such as pure discs, so the usual share is larger for the form.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from cepheid.reference.galaxies.properties import SHAPE_BAND

USUAL: Mapping[str, float] = {"look": 0.05, "shape": 0.05, "form": 0.25}
WIDE, NARROW = 5.0, 2.0  # sigma of the fixed windows, pixels
INNER, OUTER = 0.55, 1.8  # of the windows of the form, in widths of the galaxy
LEAST_WIDTH, LARGEST_WIDTH = 1.0, 6.0  # of a galaxy, pixels
FARTHEST = 8.0  # of a centroid from the middle, pixels
LEAST_LIGHT, LEAST_AREA = 1e-4, 1e-4
CENTRING, WIDENING = 6, 8  # iterations
TOGETHER = 250  # images that are described at once


class _Window(NamedTuple):
    """Weights along y and x of a round Gaussian about each centroid, (n, pixels) both."""

    y: np.ndarray
    x: np.ndarray


def describe(images: np.ndarray, bands: str) -> np.ndarray:
    """Return the description of images (n, bands, y, x), (n, numbers); ``split`` names parts."""
    parts = np.array_split(images, max(1, math.ceil(len(images) / TOGETHER)))
    return np.concatenate([_describe(part, bands) for part in parts])


def split(described: np.ndarray, bands: str) -> Mapping[str, np.ndarray]:
    """Return the columns of each way to describe images, (n, numbers) of all and of each."""
    colours, fixed = len(bands) - 1, 2 + len(bands)
    fixed_end = colours + fixed
    return {
        "look": described[:, :fixed_end],
        "shape": described[:, colours:fixed_end],
        "form": described[:, fixed_end:],
    }


def measure_near_shares(
    generated: np.ndarray, held_out: np.ndarray, training: np.ndarray, bands: str
) -> Mapping[str, float]:
    """Return for each way the share of descriptions ``generated``, (n, numbers), that are near."""
    middle, spread = training.mean(0), training.std(0).clip(1e-9)
    new, true, known = (
        split((part - middle) / spread, bands) for part in (generated, held_out, training)
    )
    return {
        name: float(
            (
                _find_nearest(new[name], known[name])
                < np.quantile(_find_nearest(true[name], known[name]), usual)
            ).mean()
        )
        for name, usual in USUAL.items()
    }


def _find_nearest(points: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return the squared distance of each of ``points`` from the nearest of ``known``."""
    squares = -2 * points @ known.T
    squares += np.square(points).sum(1)[:, None] + np.square(known).sum(1)
    return squares.min(1)


def _describe(images: np.ndarray, bands: str) -> np.ndarray:
    images = np.nan_to_num(np.asarray(images, np.float32))
    axis = np.arange(images.shape[-1], dtype=np.float32) - (images.shape[-1] - 1) / 2
    seen = images[:, bands.index(SHAPE_BAND)]
    centre = _find_centre(images.sum(1), axis)
    wide = _sum_bands(images, _make_window(axis, centre, WIDE))
    narrow = _sum_bands(images, _make_window(axis, centre, NARROW))
    magnitudes = -2.5 * np.log10(wide)
    area, ellipticity = _measure_shape(seen, axis, centre, WIDE)
    width = _find_width(seen, axis, centre)
    within, inside, around = (
        _sum_bands(images, _make_window(axis, centre, width * factor))
        for factor in (1.0, INNER, OUTER)
    )
    columns = (
        magnitudes[:, :-1] - magnitudes[:, 1:], np.log(area)[:, None] / 4, ellipticity[:, None],
        np.log(narrow / wide),
        _measure_shape(seen, axis, centre, width)[1][:, None],
        np.log(inside / within), np.log(within / around),
    )  # fmt: skip
    return np.concatenate(columns, 1).astype(np.float64)


def _find_centre(light: np.ndarray, axis: np.ndarray) -> np.ndarray:
    """Return the centroids of images (n, y, x) in a window about themselves, (2, n): x and y."""
    centre = np.zeros((2, len(light)), np.float32)
    for _ in range(CENTRING):
        window = _make_window(axis, centre, WIDE)
        x, y, total = _sum_moments(light, window, axis, centre, ((1, 0), (0, 1), (0, 0)))
        # The window pulls what it sees to its middle, so a step is longer than what is seen.
        centre += 1.5 * np.stack([x, y]) / total.clip(LEAST_LIGHT)
        centre = centre.clip(-FARTHEST, FARTHEST)
    return centre


def _find_width(seen: np.ndarray, axis: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """Return the sigma of the round Gaussian that galaxies (n, y, x) are most like, in pixels."""
    width = np.full(len(seen), 3.0, np.float32)
    for _ in range(WIDENING):
        area, _ = _measure_shape(seen, axis, centre, width)
        # 1/m = 1/width² + 1/window² for a Gaussian seen through one.
        inverse = 1 / np.sqrt(area) - 1 / width**2
        width = inverse.clip(LARGEST_WIDTH**-2, LEAST_WIDTH**-2) ** -0.5
    return width


def _measure_shape(
    seen: np.ndarray, axis: np.ndarray, centre: np.ndarray, sigma: float | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the determinant of second moments in a window, and the ellipticity, (n,) both."""
    window = _make_window(axis, centre, sigma)
    powers = ((0, 0), (2, 0), (1, 1), (0, 2))
    total, xx, xy, yy = _sum_moments(seen, window, axis, centre, powers)
    xx, xy, yy = (sums / total.clip(LEAST_LIGHT) for sums in (xx, xy, yy))
    area = (xx * yy - xy * xy).clip(LEAST_AREA)
    return area, np.hypot(xx - yy, 2 * xy) / (xx + yy).clip(math.sqrt(LEAST_AREA))


def _make_window(axis: np.ndarray, centre: np.ndarray, sigma: float | np.ndarray) -> _Window:
    precision = 0.5 / np.square(np.broadcast_to(np.float32(sigma), centre[0].shape))[:, None]
    x, y = (np.exp(-precision * (axis - at[:, None]) ** 2) for at in centre)
    return _Window(y, x)


def _sum_bands(images: np.ndarray, window: _Window) -> np.ndarray:
    """Return the light of each band in a window, (n, bands), above 0."""
    rows = (images @ window.x[:, None, :, None])[..., 0]
    return (rows * window.y[:, None]).sum(2).clip(LEAST_LIGHT)


def _sum_moments(
    light: np.ndarray,
    window: _Window,
    axis: np.ndarray,
    centre: np.ndarray,
    powers: tuple[tuple[int, int], ...],
) -> list[np.ndarray]:
    """Return sums of light · x^i · y^j in a window about ``centre``, (n,) for each (i, j)."""
    x, y = (axis - at[:, None] for at in centre)
    sums = []
    for i, j in powers:
        rows = (light @ (window.x * x**i)[:, :, None])[..., 0]
        sums.append((rows * window.y * y**j).sum(1))
    return sums
