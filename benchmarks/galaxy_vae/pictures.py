"""Real, reconstructed and generated galaxies side by side, in colour."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from cepheid.reference.data.sky import colour
from cepheid.reference.galaxies.pictures import ARCSEC_SHOWN, find_nearest, show_galaxy

SIGNAL_TO_NOISE = (10, 15, 25, 40, 60, 100, 160, 300)  # of held-out galaxies, from the left
STRETCH = f"in g, r, i (asinh stretch, {ARCSEC_SHOWN:g}″ wide)"
COLUMNS, INCHES = 8, 1.1  # of the panel of generated galaxies, and the size of one


def draw_panel(
    parameters: Any, real: np.ndarray, reconstructed: np.ndarray, generated: np.ndarray
) -> Figure:
    """Return a figure with three rows of galaxies.

    All images are noise-free, (n, bands, y, x) in units of the sky noise. Of ``generated``, which
    may be many, each column shows the one whose flux in r is nearest to its held-out galaxy.
    """
    rows = {
        "real": real,
        "reconstructed": reconstructed,
        "generated": generated[_find_alike(generated, real, parameters.bands.index("r"))],
    }
    figure = Figure(figsize=(1.22 * len(real), 4.1))
    axes = figure.subplots(3, len(real), squeeze=False)
    figure.subplots_adjust(0.03, 0.01, 0.998, 0.92, wspace=0.03, hspace=0.03)
    for line, (name, images) in zip(axes, rows.items(), strict=True):
        line[0].set_ylabel(name)
        for place, image in zip(line, colour.compose_colours(images, parameters), strict=True):
            show_galaxy(place, image, parameters)
    figure.suptitle(
        f"Noise-free galaxies {STRETCH}: held out, through 32 latents and back, and new ones of "
        "like brightness",
        y=0.98,
    )
    return figure


def _find_alike(generated: np.ndarray, real: np.ndarray, band: int) -> list[int]:
    """Return the generated image nearest in flux to each real one, none of them twice."""
    made, wanted = (images[:, band].sum((1, 2), np.float64) for images in (generated, real))
    return find_nearest(made, wanted.tolist())


def draw_generated(real: np.ndarray, generated: np.ndarray, parameters: Any) -> Figure:
    """Return a figure of held-out galaxies above generated ones, noise-free and stretched alike.

    Both are (n, bands, y, x) in units of the sky noise, of the same number.
    """
    rows = -(-len(real) // COLUMNS)
    figure = Figure(figsize=(INCHES * COLUMNS, 2 * (INCHES * rows + 0.3)))
    parts = np.ravel(np.asarray(figure.subfigures(2, 1)))
    titles = f"Held-out galaxies {STRETCH}", "Generated galaxies"
    for part, images, title in zip(parts, (real, generated), titles, strict=True):
        grid = part.add_gridspec(
            rows, COLUMNS, left=0.005, right=0.995, bottom=0.01, top=0.9, wspace=0.03, hspace=0.03
        )
        part.suptitle(title, y=0.98)
        for number, image in enumerate(colour.compose_colours(images, parameters)):
            place = part.add_subplot(grid[divmod(number, COLUMNS)])
            show_galaxy(place, image, parameters)
    return figure
