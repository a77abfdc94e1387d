"""What is measured on noise-free images of galaxies, and how far two samples of galaxies differ.

The images are seen through a round Gaussian window in the middle of the stamp, where the galaxies
are. Its weights are the same for all images, so that all that is measured follows from six sums
over the pixels of each band:

    magnitude      −2.5 log10 of the flux in r, in units of the sky noise
    size_arcsec    (det M)^¼ of the second moments M in r about the centroid
    e1, e2         (Mxx − Myy)/(Mxx + Myy) and 2·Mxy/(Mxx + Myy) in r
    u_g … z_y      colours of neighbouring bands in magnitudes, without zero points

The window makes sizes and ellipticities smaller than they are, and bounds them whatever an image
shows. That is no matter here: real and generated images are measured in the same way.
"""

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

WINDOW_SIGMA_ARCSEC = 1.2
LEAST_FLUX = 1e-6  # sky noise; an image without any light has a magnitude, too
SHAPE_BAND = "r"


def names(bands: str) -> tuple[str, ...]:
    """The properties of ``measured``, in order."""
    colours = tuple(f"{blue}_{red}" for blue, red in pairwise(bands))
    return ("magnitude", "size_arcsec", "e1", "e2", *colours)


def measured(images: Tensor, bands: str, pixel_scale_arcsec: float) -> Tensor:
    """The properties of images in units of the sky noise, (n, bands, y, x) in the order of
    ``bands``: (n, properties), float64 on the CPU."""
    pixels = images.shape[-1]
    basis = _window_moments(pixels, pixel_scale_arcsec).to(images.device)
    sums = (images.float().flatten(2) @ basis).double().cpu()
    flux = sums[..., 0].clamp(min=LEAST_FLUX)
    magnitude = -2.5 * flux.log10()
    r = bands.index(SHAPE_BAND)
    x, y, xx, yy, xy = (sums[:, r, 1:] / flux[:, r, None]).unbind(1)
    xx, yy, xy = xx - x * x, yy - y * y, xy - x * y
    size = (xx * yy - xy * xy).clamp(min=0) ** 0.25
    round_part = (xx + yy).clamp(min=LEAST_FLUX)
    shape = [magnitude[:, r], size, (xx - yy) / round_part, 2 * xy / round_part]
    return torch.cat([torch.stack(shape, dim=1), magnitude[:, :-1] - magnitude[:, 1:]], dim=1)


@lru_cache(maxsize=4)
def _window_moments(pixels: int, pixel_scale_arcsec: float) -> Tensor:
    """The window times 1, x, y, x², y², xy (arcseconds from the middle): (pixels², 6), float32."""
    axis = (np.arange(pixels) - (pixels - 1) / 2) * pixel_scale_arcsec
    y, x = np.meshgrid(axis, axis, indexing="ij")
    window = np.exp(-(x * x + y * y) / (2 * WINDOW_SIGMA_ARCSEC**2))
    basis = np.stack([np.ones_like(x), x, y, x * x, y * y, x * y]) * window
    return torch.from_numpy(basis.reshape(6, -1).T.astype(np.float32))


def distances(generated: Tensor, real: Tensor, bands: str) -> Mapping[str, float]:
    """Between the properties of two samples, (n, properties) and (m, properties): for each the
    Wasserstein-1 distance in units of the real ones' standard deviation, so that 0.1 is a shift by
    a tenth of the width of the distribution."""
    return {
        name: wasserstein(made, true) / float(true.std(correction=0))
        for name, made, true in zip(names(bands), generated.T, real.T, strict=True)
    }


def overall(distances: Mapping[str, float]) -> float:
    """One number for all of them: their mean. The largest would be that of whichever colour comes
    last in a run, which is a matter of chance."""
    return sum(distances.values()) / len(distances)


def wasserstein(first: Tensor, second: Tensor) -> float:
    """The Wasserstein-1 distance of two samples of numbers: the area between their distribution
    functions (Vallender 1974)."""
    values, order = torch.cat([first, second]).sort()
    # Each value is a step of +1/n of the first function, or of −1/m.
    steps = torch.cat(
        [
            first.new_full(first.shape, 1 / len(first)),
            first.new_full(second.shape, -1 / len(second)),
        ]
    )
    difference = steps[order].cumsum(0)[:-1]
    return float((difference.abs() * values.diff()).sum())
