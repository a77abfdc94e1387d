"""A picture for people: images of the evaluation set with their boxes, predicted and true."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cepheid.reference.data.detection.average_precision import Detections, Truth
from cepheid.reference.data.detection.pictures import (
    COLOURS,
    COLUMNS,
    LEAST_SCORE,
    ROWS,
    TRUTH_COLOUR,
    add_legend,
    choose_images,
    draw_box,
)

__all__ = ["choose_images", "draw_detections"]

MARGINS = {
    "left": 0.005,
    "right": 0.995,
    "bottom": 0.065,
    "top": 0.935,
    "wspace": 0.02,
    "hspace": 0.02,
}


def draw_detections(
    images: Sequence[np.ndarray],
    numbers: np.ndarray,
    truth: Truth,
    detections: Detections,
    names: Sequence[str],
) -> Figure:
    """Return a figure of ``images``, (y, x, 3) each, of the evaluation set's ``numbers``, (n,).

    True boxes are dashed. Detections have the colour of their class and their score in percent.
    """
    figure = Figure(figsize=(3.1 * COLUMNS, 3.1 * ROWS + 0.75))
    grid = figure.subplots(ROWS, COLUMNS, gridspec_kw=MARGINS, squeeze=False)
    for axes, image, number in zip(grid.flat, images, numbers, strict=False):
        axes.imshow(image, interpolation="nearest")
        axes.set_axis_off()
        _draw_truth(axes, truth, number)
        _draw_found(axes, detections, number, image.shape[:2])
    add_legend(figure, names)
    figure.suptitle(
        f"Detections with a score of {100 * LEAST_SCORE:.0f}% or more in evaluation images", y=0.985
    )
    return figure


def _draw_truth(axes: Axes, truth: Truth, number: int) -> None:
    for left, top, right, bottom in truth.boxes[truth.image_numbers == number]:
        draw_box(axes, (left, top, right, bottom), TRUTH_COLOUR, linestyle=(0, (3, 3)), width=1.0)


def _draw_found(axes: Axes, detections: Detections, number: int, size: tuple[int, int]) -> None:
    shown = (detections.image_numbers == number) & (detections.scores >= LEAST_SCORE)
    sides = np.array([size[1], size[0]] * 2)
    for box, label, score in zip(
        detections.boxes[shown] * sides,
        detections.labels[shown],
        detections.scores[shown],
        strict=True,
    ):
        colour = COLOURS[(label - 1) % len(COLOURS)]
        draw_box(axes, box, colour, linestyle="-", width=1.6)
        axes.text(
            max(0.0, box[0]),
            max(0.03 * size[0], box[1] - 0.012 * size[0]),
            f"{math.floor(100 * score):d}",
            color=colour,
            fontweight="bold",
        )
