"""A moving picture for people: what networks see, what follows and what they predict."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEIGHT_PIXELS = 64  # of a frame of the strip, about
GAP = 0.08  # of a frame
BACKGROUND, CURRENT = (245, 245, 245), (230, 120, 20)
INCHES_PER_FRAME = 0.55


def draw_moments(past: np.ndarray, true: np.ndarray, predicted: np.ndarray) -> list["Figure"]:
    """Return a figure for each moment of clips, all uint8 (n, time, y, x, channels).

    Each shows strips of all frames, with the current ones in a border, and those larger beside.
    """
    count = past.shape[1] + true.shape[1]
    return [draw_moment(past, true, predicted, moment) for moment in range(count)]


def draw_moment(past: np.ndarray, true: np.ndarray, predicted: np.ndarray, moment: int) -> "Figure":
    """Return the figure of one ``moment``, counted from the first known frame."""
    from matplotlib.figure import Figure

    rows = [compose(*clip, moment=moment) for clip in zip(past, true, predicted, strict=True)]
    image = np.concatenate(rows)
    known, count = past.shape[1], past.shape[1] + true.shape[1]
    inches = INCHES_PER_FRAME * (count + 4.6)
    height = inches * image.shape[0] / image.shape[1]
    figure = Figure(figsize=(inches, height + 0.75))
    axes = figure.add_axes((0.0, 0.0, 1.0, height / (height + 0.75)))
    axes.imshow(image, interpolation="nearest", aspect="auto")
    axes.set_axis_off()
    side = image.shape[1] / (count + 4.6)
    for place, text in (
        (1.1, "truth"),
        (3.2, "prediction" if moment >= known else "known"),
        (4.5 + known / 2, "known frames"),
        (4.5 + known + true.shape[1] / 2, "frames that follow: above the truth, below predicted"),
    ):
        axes.text(place * side, -4, text, ha="center", va="bottom", fontsize=8)
    figure.suptitle(f"Frame {moment + 1} of {count} of some evaluation clips", fontsize=11, y=0.985)
    return figure


def compose(
    past: np.ndarray, true: np.ndarray, predicted: np.ndarray, *, moment: int
) -> np.ndarray:
    """Return the picture of a clip, uint8 (y, x, 3), from frames (time, y, x, channels)."""
    factor = max(1, HEIGHT_PIXELS // past.shape[1])
    above = [*past, *true]
    below = [None] * len(past) + list(predicted)
    current = above[moment], predicted[moment - len(past)] if moment >= len(past) else above[moment]
    large = [_frame(image, 2 * factor, 0, is_current=False) for image in current]
    gap = _find_gap(past.shape[1] * factor)
    strip = np.concatenate([_join(row, factor, gap, moment) for row in (above, below)])
    tall = max(strip.shape[0], large[0].shape[0])
    parts = [_pad(part, tall, gap) for part in (*large, strip)]
    return _pad(np.concatenate(parts, axis=1), tall + gap, 0)


def _join(images: Sequence[np.ndarray | None], factor: int, gap: int, moment: int) -> np.ndarray:
    """Return frames side by side; None leaves a place empty."""
    shown = next(image for image in images if image is not None)
    empty = np.broadcast_to(np.array(BACKGROUND, np.uint8), (*shown.shape[:2], 3))
    return np.concatenate(
        [
            _frame(empty if image is None else image, factor, gap,
                   is_current=place == moment and image is not None)
            for place, image in enumerate(images)
        ],
        axis=1,
    )  # fmt: skip


def _frame(image: np.ndarray, factor: int, gap: int, *, is_current: bool) -> np.ndarray:
    """Return a frame, enlarged, with a border of ``gap`` pixels."""
    colour = np.broadcast_to(image, (*image.shape[:2], 3))
    large = colour.repeat(factor, axis=0).repeat(factor, axis=1)
    whole = np.empty((large.shape[0] + 2 * gap, large.shape[1] + 2 * gap, 3), np.uint8)
    whole[:] = CURRENT if is_current else BACKGROUND
    whole[gap : gap + large.shape[0], gap : gap + large.shape[1]] = large
    return whole


def _pad(image: np.ndarray, height: int, gap: int) -> np.ndarray:
    """Return the image with background below, up to ``height``, and ``gap`` pixels to its right."""
    whole = np.empty((height, image.shape[1] + gap, 3), np.uint8)
    whole[:] = BACKGROUND
    whole[: image.shape[0], : image.shape[1]] = image
    return whole


def _find_gap(side: int) -> int:
    return max(1, round(GAP * side / 2))
