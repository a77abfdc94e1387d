"""Generated galaxies beside real ones, in colour."""

from typing import TYPE_CHECKING

import numpy as np

from cepheid.reference.data.galaxies import SkyParameters, colour

if TYPE_CHECKING:
    from matplotlib.figure import Figure, SubFigure

COLUMNS = 8
ARCSEC_SHOWN = 6.4  # of the stamp, around its middle
INCHES = 1.1  # of one galaxy


def draw_panel(real: np.ndarray, generated: np.ndarray, sky: SkyParameters) -> "Figure":
    """Return a figure of real galaxies above generated ones, noise-free and stretched alike.

    Both are (n, bands, y, x) in units of the sky noise, of the same number.
    """
    from matplotlib.figure import Figure

    rows = -(-len(real) // COLUMNS)
    figure = Figure(figsize=(INCHES * COLUMNS, 2 * (INCHES * rows + 0.3)))
    titles = (
        f"Real galaxies of the held-out set in g, r, i (asinh stretch, {ARCSEC_SHOWN:g}″ wide)",
        "Generated galaxies",
    )
    parts = np.ravel(np.asarray(figure.subfigures(2, 1)))
    for part, images, title in zip(parts, (real, generated), titles, strict=True):
        _draw(part, colour.compose_colours(images, sky), rows, title, sky.pixel_scale_arcsec)
    return figure


def _draw(
    part: "SubFigure", images: np.ndarray, rows: int, title: str, pixel_scale_arcsec: float
) -> None:
    """Draw the middle of each stamp, x to the right and y upwards."""
    pixels = images.shape[1]
    shown = min(pixels, round(ARCSEC_SHOWN / pixel_scale_arcsec))
    first = (pixels - shown) // 2
    middle = slice(first, first + shown)
    grid = part.add_gridspec(
        rows, COLUMNS, left=0.005, right=0.995, bottom=0.01, top=0.9, wspace=0.03, hspace=0.03
    )
    part.suptitle(title, y=0.98)
    for number, image in enumerate(images):
        axes = part.add_subplot(grid[divmod(number, COLUMNS)])
        axes.imshow(image[middle, middle], origin="lower", interpolation="nearest")
        axes.set_xticks([])
        axes.set_yticks([])
