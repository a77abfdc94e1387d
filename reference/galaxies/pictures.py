"""Pictures of the posteriors of single galaxies, as in figure 1 of the paper."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cepheid.reference.data.sky import colour
from cepheid.reference.galaxies.shapes import RADIUS_SQUARED
from cepheid.reference.galaxies.stamps import Estimate, Stamps

SIGNAL_TO_NOISE = (8, 15, 30, 60, 120, 240)  # a galaxy of the evaluation set nearest to each
REGIONS = {"95%": ("coverage_95", 0.22), "68%": ("coverage_68", 0.45)}  # with their opacity
COLOUR, TRUTH_COLOUR, DRAWS_COLOUR = "C0", "C4", "C6"
FEWEST_SCALES = 4.0  # of the wider standard deviation, from the centre of a panel to its edge
ARCSEC_SHOWN = 6.4  # of the stamp, around its middle


def draw_posteriors(
    data: Stamps,
    estimate: Estimate,
    means_of_draws: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Figure:
    """Return a figure of evaluation galaxies, from faint to bright, with their posteriors.

    Each galaxy is shown in colour; below it are the regions of (e1, e2) that hold it with 68% and
    95% probability, and the truth. Of a Bayesian network the figure also shows the mean of each
    draw of its weights, (draws, n, 2) for n stamps.
    """
    parameters, sky, rows = data.parameters, data.sky, data.evaluation_rows
    chosen = rows[find_nearest(sky.labels["snr"][rows], SIGNAL_TO_NOISE)]
    stamps, labels = sky.stamps[chosen], sky.labels[chosen]
    means, scales = estimate(stamps)
    draws = means_of_draws(stamps) if means_of_draws else np.empty((0, *means.shape))
    images = colour.compose_colours(stamps, parameters)
    figure = Figure(figsize=(1.95 * len(chosen), 4.75))
    grid = figure.add_gridspec(
        2, len(chosen), left=0.052, right=0.995, bottom=0.17, top=0.94, wspace=0.38, hspace=0.13
    )
    for column, (image, label) in enumerate(zip(images, labels, strict=True)):
        show_galaxy(figure.add_subplot(grid[0, column]), image, parameters)
        axes = figure.add_subplot(grid[1, column])
        _draw_posterior(axes, means[column], scales[column], (label["e1"], label["e2"]))
        if len(draws):
            axes.plot(
                *draws[:, column].T, ".", color=DRAWS_COLOUR, markersize=4, label="weight draws"
            )
        axes.set_title(f"S/N {label['snr']:.0f}", pad=4)
        axes.set_xlabel("e1", labelpad=1)
        if column == 0:
            axes.set_ylabel("e2", labelpad=1)
    handles, names = axes.get_legend_handles_labels()
    figure.legend(handles, names, loc="lower center", ncols=4, frameon=False)
    figure.suptitle(
        f"Evaluation galaxies in g, r, i (asinh stretch, {ARCSEC_SHOWN:g}″ wide), "
        "and the network's posteriors of their shape",
        y=0.985,
    )
    return figure


def find_nearest(values: np.ndarray, wanted: Sequence[float]) -> list[int]:
    """Return the position of the nearest value by ratio for each wanted one, none twice.

    ``values`` are (n,).
    """
    found: list[int] = []
    for value in wanted:
        order = np.argsort(np.abs(np.log(np.maximum(values, 1e-6) / value)), kind="stable")
        found += [next(int(position) for position in order if position not in found)]
    return found


def show_galaxy(axes: Axes, image: np.ndarray, parameters: Any) -> None:
    """Show the middle of a picture (y, x, 3), x to the right and y upwards as in the data."""
    shown = min(len(image), round(ARCSEC_SHOWN / parameters.pixel_scale_arcsec))
    first = (len(image) - shown) // 2
    middle = slice(first, first + shown)
    axes.imshow(image[middle, middle], origin="lower", interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])


def _draw_posterior(
    axes: Axes, mean: np.ndarray, scale: np.ndarray, truth: tuple[float, float]
) -> None:
    """Draw ellipses mean + r·L·(cos, sin); a panel is as wide as its posterior."""
    angles = np.linspace(0, 2 * math.pi, 200)
    circle = np.stack([np.cos(angles), np.sin(angles)])
    for name, (region, opacity) in REGIONS.items():
        x, y = mean[:, None] + math.sqrt(RADIUS_SQUARED[region]) * scale @ circle
        axes.fill(x, y, color=COLOUR, alpha=opacity, linewidth=0, label=f"{name} region")
    axes.plot(*truth, "*", color=TRUTH_COLOUR, markersize=9, label="truth")
    widest = math.sqrt(float(np.linalg.eigvalsh(scale @ scale.T)[-1]))
    half = max(FEWEST_SCALES * widest, 1.2 * float(np.abs(np.subtract(truth, mean)).max()))
    axes.set_xlim(mean[0] - half, mean[0] + half)
    axes.set_ylim(mean[1] - half, mean[1] + half)
    axes.set_box_aspect(1)
    axes.locator_params(nbins=3)
    axes.tick_params(length=2, pad=2)
    axes.grid()
