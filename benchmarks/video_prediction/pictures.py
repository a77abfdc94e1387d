"""A moving picture for people: what the network sees, what follows and what it predicts."""

import numpy as np
from matplotlib.figure import Figure

SIDE_PIXELS = 64  # of a frame of the strip, about
GAP = 3
LARGE = 2  # how much larger the current frames are, beside the strip
BACKGROUND, CURRENT = (245, 245, 245), (230, 120, 20)
INCHES_PER_FRAME, TITLE_INCHES = 0.55, 0.75


def draw_moments(past: np.ndarray, true: np.ndarray, predicted: np.ndarray) -> list[Figure]:
    """Return a figure for each moment of two clips, all uint8 (2, time, y, x, channels).

    The first is the best predicted one, the second the typical one.

    Each shows strips of all frames, with the current ones in a border, and those larger beside.
    """
    count = past.shape[1] + true.shape[1]
    return [draw_moment(past, true, predicted, moment) for moment in range(count)]


def draw_moment(past: np.ndarray, true: np.ndarray, predicted: np.ndarray, moment: int) -> Figure:
    """Return the figure of one ``moment``; shapes are those of ``draw_moments``."""
    rows = [compose(*clip, moment) for clip in zip(past, true, predicted, strict=True)]
    image = np.concatenate(rows)
    known, follow = past.shape[1], true.shape[1]
    columns = 2 * LARGE + known + follow
    width = INCHES_PER_FRAME * columns
    height = width * image.shape[0] / image.shape[1]
    figure = Figure(figsize=(width, height + TITLE_INCHES))
    axes = figure.add_axes((0.0, 0.0, 1.0, height / (height + TITLE_INCHES)))
    axes.imshow(image, interpolation="nearest", aspect="auto")
    axes.set_axis_off()
    for column, text in (
        (LARGE / 2, "truth"),
        (3 * LARGE / 2, "prediction" if moment >= known else "known"),
        (2 * LARGE + known / 2, "known frames"),
        (2 * LARGE + known + follow / 2, "frames that follow: above the truth, below predicted"),
    ):
        place = column / columns * image.shape[1]
        axes.text(place, -4, text, ha="center", va="bottom")
    figure.suptitle(
        f"Frame {moment + 1} of {known + follow}: the best prediction of some clips above, "
        "the typical one below"
    )
    return figure


def compose(past: np.ndarray, true: np.ndarray, predicted: np.ndarray, moment: int) -> np.ndarray:
    """Return the picture of a clip, uint8 (y, x, 3), from frames (time, y, x, channels)."""
    factor = max(1, SIDE_PIXELS // past.shape[1])
    cell = past.shape[1] * factor + 2 * GAP
    known, count = len(past), len(past) + len(true)
    picture = np.full((2 * cell + GAP, (count + 2 * LARGE) * cell, 3), BACKGROUND, np.uint8)

    def place(image: np.ndarray, row: int, column: int, size: int = 1) -> None:
        if column == 2 * LARGE + moment:
            picture[row * cell : (row + 1) * cell, column * cell : (column + 1) * cell] = CURRENT
        large = image.repeat(size * factor, axis=0).repeat(size * factor, axis=1)
        top, left = row * cell + GAP, column * cell + GAP
        picture[top : top + large.shape[0], left : left + large.shape[1]] = large

    for time, image in enumerate((*past, *true)):
        place(image, 0, 2 * LARGE + time)
    for time, image in enumerate(predicted, known):
        place(image, 1, 2 * LARGE + time)
    current = (*past, *true)[moment]
    place(current, 0, 0, LARGE)
    place(predicted[moment - known] if moment >= known else current, 0, LARGE, LARGE)
    return picture
