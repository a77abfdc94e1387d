"""A picture for people: images of the evaluation set with their boxes, predicted and true."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reference.data.detection.truth import Detections, Truth

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARGINS = {
    "left": 0.005,
    "right": 0.995,
    "bottom": 0.065,
    "top": 0.935,
    "wspace": 0.02,
    "hspace": 0.02,
}
LEAST_SCORE = 0.4  # of a box that is drawn
COLUMNS, ROWS = 4, 2
COLOURS = ("#ffb347", "#5ec8f2", "#f26fb4", "#9be564")  # of classes, in turn
TRUTH_COLOUR = "#ffffff"


def draw_detections(
    images: Sequence[np.ndarray],
    numbers: np.ndarray,
    truth: Truth,
    detections: Detections,
    names: Sequence[str],
) -> "Figure":
    """Return a figure of ``images``, (y, x, 3) each, of the evaluation set's ``numbers``, (n,).

    True boxes are dashed. Detections have the colour of their class and their score in percent.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.1 * COLUMNS, 3.1 * ROWS + 0.75))
    grid = figure.subplots(
        ROWS,
        COLUMNS,
        gridspec_kw=MARGINS,
        squeeze=False,
    )
    for axes, image, number in zip(grid.flat, images, numbers, strict=False):
        axes.imshow(image, interpolation="nearest")
        axes.set_axis_off()
        _draw_truth(axes, truth, number)
        _draw_found(axes, detections, number, image.shape[:2])
    _add_legend(figure, names)
    figure.suptitle(
        f"Detections with a score of {100 * LEAST_SCORE:.0f}% or more in evaluation images",
        fontsize=12,
        y=0.985,
    )
    return figure


def compose_images(
    pictures: Any, rows: np.ndarray, data: Mapping[str, Any]
) -> Sequence[np.ndarray]:
    """Return images of rows (n,) for people, uint8 (y, x, 3) each: scenes as colour pictures.

    ``data`` is that of the definition.
    """
    images = [pictures.read_image(row) for row in rows]
    if data["generator"] != "scenes":
        return images
    from reference.data import scenes
    from reference.data.galaxies import colour
    from reference.data.scenes import sky

    signals = sky.compute_sky_noises(np.stack(images)).transpose(0, 3, 1, 2)
    return list(colour.compose_colours(signals, scenes.parameters_of(data).sky))


def choose_images(truth: Truth) -> np.ndarray:
    """Return the numbers of those COLUMNS × ROWS images that have most classes, then most objects.

    The result is (n,), in ascending order.
    """
    classes = [
        len(np.unique(truth.labels[truth.image_numbers == k])) for k in range(len(truth.heights))
    ]
    objects = np.bincount(truth.image_numbers, minlength=len(truth.heights))
    order = np.lexsort((-objects, -np.array(classes)))
    return np.sort(order[: COLUMNS * ROWS])


def _draw_truth(axes: "Axes", truth: Truth, number: int) -> None:
    for left, top, right, bottom in truth.boxes[truth.image_numbers == number]:
        _draw_box(axes, (left, top, right, bottom), TRUTH_COLOUR, linestyle=(0, (3, 3)), width=1.0)


def _draw_found(axes: "Axes", detections: Detections, number: int, size: tuple[int, int]) -> None:
    shown = (detections.image_numbers == number) & (detections.scores >= LEAST_SCORE)
    sides = np.array([size[1], size[0]] * 2)
    for box, label, score in zip(
        detections.boxes[shown] * sides,
        detections.labels[shown],
        detections.scores[shown],
        strict=True,
    ):
        colour = COLOURS[(label - 1) % len(COLOURS)]
        _draw_box(axes, box, colour, linestyle="-", width=1.6)
        axes.text(
            max(0.0, box[0]),
            max(0.03 * size[0], box[1] - 0.012 * size[0]),
            f"{math.floor(100 * score):d}",
            color=colour,
            fontsize=8,
            fontweight="bold",
        )


def _draw_box(
    axes: "Axes", box: Sequence[float] | np.ndarray, colour: str, linestyle: Any, width: float
) -> None:
    from matplotlib.patches import Rectangle

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


def _add_legend(figure: "Figure", names: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=COLOURS[k % len(COLOURS)], label=f"found: {name.replace('_', ' ')}")
        for k, name in enumerate(names[: len(COLOURS)])
    ]
    handles.append(Line2D([], [], color="#777777", linestyle="--", label="truth"))
    figure.legend(handles=handles, loc="lower center", ncols=len(handles), frameon=False)
