"""What pictures of detections have in common: which images, their colours, boxes and legend."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from cepheid.reference.data.detection.average_precision import Truth

LEAST_SCORE = 0.4  # of a detection that is drawn
COLUMNS, ROWS = 2, 2
# Bright, for lines upon photographs and dark skies, as the colours of the style are not.
COLOURS = ("#ffb347", "#5ec8f2", "#f26fb4", "#9be564")  # of classes, in turn
TRUTH_COLOUR = "#ffffff"


def choose_images(truth: Truth, count: int = COLUMNS * ROWS) -> np.ndarray:
    """Return the numbers of those ``count`` images that have most classes, then most objects.

    The result is (n,), in ascending order.
    """
    classes = [
        len(np.unique(truth.labels[truth.image_numbers == k])) for k in range(len(truth.heights))
    ]
    objects = np.bincount(truth.image_numbers, minlength=len(truth.heights))
    order = np.lexsort((-objects, -np.array(classes)))
    return np.sort(order[:count])


def draw_box(
    axes: Axes, box: Sequence[float] | np.ndarray, colour: str, linestyle: Any, width: float
) -> None:
    """Draw a box, left, top, right and bottom in pixels (4,)."""
    left, top, right, bottom = box
    axes.add_patch(
        Rectangle(
            (left - 0.5, top - 0.5),  # a pixel's centre is at its number
            right - left,
            bottom - top,
            fill=False,
            edgecolor=colour,
            linestyle=linestyle,
            linewidth=width,
        )
    )


def add_legend(figure: Figure, names: Sequence[str], has_truth: bool = True) -> None:
    """Say below ``figure`` what the colours of classes ``names`` are."""
    prefix = "found: " if has_truth else ""
    handles = [
        Line2D([], [], color=COLOURS[k % len(COLOURS)], label=f"{prefix}{name.replace('_', ' ')}")
        for k, name in enumerate(names[: len(COLOURS)])
    ]
    if has_truth:
        handles.append(Line2D([], [], color="C5", linestyle="--", label="truth"))
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), frameon=False)
