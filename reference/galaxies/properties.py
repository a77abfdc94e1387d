"""Properties of noise-free images of galaxies, and the distance of two samples of galaxies.

The images are seen through a round Gaussian window in the middle of the stamp, where the galaxies
are. Its weights are the same for all images, so that all properties follow from six sums over the
pixels of each band:

    magnitude      −2.5 log10 of the flux in r, in units of the sky noise
    size_arcsec    (det M)^¼ of the second moments M in r about the centroid
    e1, e2         (Mxx − Myy)/(Mxx + Myy) and 2·Mxy/(Mxx + Myy) in r
    u_g … z_y      colours of neighbouring bands in magnitudes, without zero points

The window makes sizes and ellipticities smaller than they are, and bounds them for any image. That
does not matter here, because real and generated images are measured in the same way.
"""

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise

import numpy as np

WINDOW_SIGMA_ARCSEC = 1.2
LEAST_FLUX = 1e-6  # in sky noise, so that an image without light has a magnitude
SHAPE_BAND = "r"


def list_properties(bands: str) -> tuple[str, ...]:
    """Return the names of the properties of ``measure``, in order."""
    colours = tuple(f"{blue}_{red}" for blue, red in pairwise(bands))
    return ("magnitude", "size_arcsec", "e1", "e2", *colours)


def measure(images: np.ndarray, bands: str, pixel_scale_arcsec: float) -> np.ndarray:
    """Return the properties of images, (n, properties), float64.

    ``images`` are (n, bands, y, x) in units of the sky noise, in the order of ``bands``.
    """
    window = make_window_moments(images.shape[-1], pixel_scale_arcsec)
    return compute_from_sums(
        images.astype(np.float32).reshape(*images.shape[:2], -1) @ window, bands
    )


def compute_from_sums(sums: np.ndarray, bands: str) -> np.ndarray:
    """Return the properties from the products of images with the moments, (n, bands, 6)."""
    sums = sums.astype(np.float64)
    flux = sums[..., 0].clip(min=LEAST_FLUX)
    magnitude = -2.5 * np.log10(flux)
    r = bands.index(SHAPE_BAND)
    x, y, xx, yy, xy = (sums[:, r, 1:] / flux[:, r, None]).T
    xx, yy, xy = xx - x * x, yy - y * y, xy - x * y
    size = (xx * yy - xy * xy).clip(min=0) ** 0.25
    round_part = (xx + yy).clip(min=LEAST_FLUX)
    shape = [magnitude[:, r], size, (xx - yy) / round_part, 2 * xy / round_part]
    return np.concatenate([np.stack(shape, axis=1), magnitude[:, :-1] - magnitude[:, 1:]], axis=1)


@lru_cache(maxsize=4)
def make_window_moments(pixels: int, pixel_scale_arcsec: float) -> np.ndarray:
    """Return the window times 1, x, y, x², y², xy in arcsec, (pixels², 6), float32."""
    axis = (np.arange(pixels) - (pixels - 1) / 2) * pixel_scale_arcsec
    y, x = np.meshgrid(axis, axis, indexing="ij")
    window = np.exp(-(x * x + y * y) / (2 * WINDOW_SIGMA_ARCSEC**2))
    basis = np.stack([np.ones_like(x), x, y, x * x, y * y, x * y]) * window
    return basis.reshape(6, -1).T.astype(np.float32)


def compute_distances(generated: np.ndarray, real: np.ndarray, bands: str) -> Mapping[str, float]:
    """Return the Wasserstein-1 distance of each property between two samples.

    ``generated`` and ``real`` are (n, properties) and (m, properties). The unit is the standard
    deviation of the real ones, so that 0.1 is a shift by a tenth of the width of the distribution.
    """
    return {
        name: wasserstein(new, true) / float(true.std())
        for name, new, true in zip(list_properties(bands), generated.T, real.T, strict=True)
    }


def average_distances(distances: Mapping[str, float]) -> float:
    """Return the mean of the distances.

    The largest would be that of the colour that happens to converge last in a run.
    """
    return sum(distances.values()) / len(distances)


def wasserstein(first: np.ndarray, second: np.ndarray) -> float:
    """Return the Wasserstein-1 distance of two samples of numbers, (n,) and (m,).

    It is the area between their distribution functions (Vallender 1974).
    """
    values = np.concatenate([first, second])
    # Each value is a step of +1/n of the first function, or of −1/m.
    steps = np.repeat([1 / len(first), -1 / len(second)], [len(first), len(second)])
    order = values.argsort()
    difference = steps[order].cumsum()[:-1]
    return float((np.abs(difference) * np.diff(values[order])).sum())
