"""Real, reconstructed and generated galaxies side by side, in colour."""

from typing import TYPE_CHECKING

import numpy as np

from cepheid.reference.data.galaxies import SkyParameters, colour
from cepheid.reference.galaxies.images import crop_middle
from cepheid.reference.galaxies.pictures import ARCSEC_SHOWN, find_nearest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIGNAL_TO_NOISE = (10, 15, 25, 40, 60, 100, 160, 300)  # of the real galaxies, from left to right


def draw_panel(
    parameters: SkyParameters, real: np.ndarray, reconstructed: np.ndarray, generated: np.ndarray
) -> "Figure":
    """Return a figure with three rows of galaxies.

    All images are noise-free, (n, bands, y, x) in units of the sky noise. Of ``generated``, which
    may be many, each column shows the one whose flux in r is nearest to its real galaxy.
    """
    from matplotlib.figure import Figure

    rows = {
        "real": real,
        "reconstructed": reconstructed,
        "generated": generated[_find_alike(generated, real, parameters.bands.index("r"))],
    }
    figure = Figure(figsize=(1.22 * len(real), 4.1))
    axes = figure.subplots(3, len(real), squeeze=False)
    figure.subplots_adjust(0.03, 0.01, 0.998, 0.92, wspace=0.03, hspace=0.03)
    pixels = min(real.shape[-1], round(ARCSEC_SHOWN / parameters.pixel_scale_arcsec))
    for line, (name, images) in zip(axes, rows.items(), strict=True):
        line[0].set_ylabel(name)
        shown = crop_middle(images, pixels)
        for place, image in zip(line, colour.compose_colours(shown, parameters), strict=True):
            place.imshow(image, origin="lower", interpolation="nearest")
            place.set_xticks([])
            place.set_yticks([])
    figure.suptitle(
        f"Noise-free galaxies in g, r, i (asinh stretch, {ARCSEC_SHOWN:g}″ wide): held out, "
        "through 32 latents and back, and new ones of like brightness",
        y=0.98,
    )
    return figure


def _find_alike(generated: np.ndarray, real: np.ndarray, band: int) -> list[int]:
    """Return the generated image nearest in flux to each real one, none of them twice."""
    made, wanted = (images[:, band].sum((1, 2), np.float64) for images in (generated, real))
    return find_nearest(made, wanted.tolist())
