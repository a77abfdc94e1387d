"""A picture for people: images of the evaluation set, the masks found there, and the true ones."""

from collections.abc import Sequence

import numpy as np
from faster_coco_eval import mask
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from cepheid.reference.data.detection.average_precision import Detections, Mask, Truth
from cepheid.reference.data.detection.pictures import (
    COLOURS,
    LEAST_SCORE,
    TRUTH_COLOUR,
    add_legend,
    draw_box,
)

COLUMNS = 2
TITLES = ("scene", f"found, score {100 * LEAST_SCORE:.0f}% or more", "truth")
MARGINS = {
    "left": 0.03,
    "right": 0.995,
    "bottom": 0.06,
    "top": 0.99,
    "wspace": 0.02,
    "hspace": 0.02,
}
COVER = 0.45  # of a mask over the image


def draw_masks(
    images: Sequence[np.ndarray],
    numbers: np.ndarray,
    truth: Truth,
    detections: Detections,
    names: Sequence[str],
) -> Figure:
    """Return a figure of ``images``, (y, x, 3) each, of the evaluation set's ``numbers``, (n,).

    Masks have the colour of their class and are told apart by their outlines; boxes are dashed.
    """
    figure = Figure(figsize=(2.1 * COLUMNS, 2.1 * len(TITLES) + 0.4))
    grid = figure.subplots(len(TITLES), COLUMNS, gridspec_kw=MARGINS, squeeze=False)
    for axes in grid.flat:
        axes.set_xticks([])
        axes.set_yticks([])
        for spine in axes.spines.values():
            spine.set_visible(False)
    for axes, title in zip(grid[:, 0], TITLES, strict=True):
        axes.set_ylabel(title)
    is_found = detections.scores >= LEAST_SCORE
    for column, image, number in zip(grid.T, images, numbers, strict=False):
        found = np.flatnonzero(is_found & (detections.image_numbers == number))
        true = np.flatnonzero(truth.image_numbers == number)
        sides = np.array([image.shape[1], image.shape[0]] * 2)
        for axes in column:
            axes.imshow(image, interpolation="nearest")
            axes.autoscale(False)
        _draw_objects(
            column[1], found, detections.labels, detections.boxes * sides, detections.masks
        )
        _draw_objects(column[2], true, truth.labels, truth.boxes, truth.masks)
    add_legend(figure, names, has_truth=False)
    return figure


def _draw_objects(
    axes: Axes,
    places: np.ndarray,
    labels: np.ndarray,
    boxes: np.ndarray,
    masks: Sequence[Mask] | None,
) -> None:
    assert masks is not None
    for place in places.tolist():
        _draw_mask(axes, masks[place], COLOURS[(labels[place] - 1) % len(COLOURS)])
        draw_box(axes, boxes[place], TRUTH_COLOUR, linestyle=(0, (3, 3)), width=0.6)


def _draw_mask(axes: Axes, code: Mask, colour: str) -> None:
    bits = np.asarray(mask.decode(dict(code)), float)
    layer = np.empty((*bits.shape, 4))
    layer[..., :3], layer[..., 3] = to_rgb(colour), COVER * bits
    axes.imshow(layer, interpolation="nearest")
    if bits.any():
        axes.contour(bits, levels=[0.5], colors=[colour], linewidths=1.2)
