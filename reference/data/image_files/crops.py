"""Which part of an image is seen: random for training, the centre for evaluation.

Training: Szegedy et al. 2015, arXiv:1409.4842, section 6: a part whose share of the image's area
and whose aspect ratio are drawn from ranges, anywhere in the image, resized, mirrored half the
time. Evaluation: the centre of the image resized so that its shorter side has
``evaluation_resize_pixels``. Both are whole pixels of the image, which are then resized, as in the
reference of MLPerf 0.6 for TPUs.
"""

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

from cepheid.reference.data.image_files.packing import LabelledImages
from cepheid.reference.data.order import SampleStream
from cepheid.reference.data.random_streams import draw_rows

ATTEMPTS = 10  # to draw a part that lies within the image


@dataclass(frozen=True)
class Cropping:
    """The size and the random crops of images.

    Images have ``pixels`` a side. In training, the share of the area is uniform in ``area``, and
    width by height is uniform in its logarithm in ``aspect``.
    """

    pixels: int
    evaluation_resize_pixels: int
    area: tuple[float, float] = (0.08, 1.0)
    aspect: tuple[float, float] = (3 / 4, 4 / 3)


@dataclass(frozen=True)
class Views:
    """Views of n images.

    ``boxes``, (n, 4), are left, top, right, bottom in pixels of the image in ``rows``, int64 (n,).
    ``mirrored`` is (n,).
    """

    rows: np.ndarray
    boxes: np.ndarray
    mirrored: np.ndarray


def make_training_views(
    images: LabelledImages, cropping: Cropping, stream: SampleStream, first: int, count: int
) -> Views:
    """Return the views at ``count`` positions of the stream from ``first`` on."""
    rows, _ = stream.take(first, count)
    positions = range(first, first + count)
    drawn = draw_rows(stream.seed, "crop", positions, 2 * ATTEMPTS + 3)
    widths, heights = images.widths[rows].astype(float), images.heights[rows].astype(float)
    low, high = cropping.area
    areas = (low + (high - low) * drawn[:, :ATTEMPTS]) * (widths * heights)[:, None]
    low, high = map(math.log, cropping.aspect)
    aspects = np.exp(low + (high - low) * drawn[:, ATTEMPTS : 2 * ATTEMPTS])
    across = np.rint(np.sqrt(areas * aspects))
    down = np.rint(np.sqrt(areas / aspects))
    fits = (across >= 1) & (down >= 1) & (across <= widths[:, None]) & (down <= heights[:, None])
    chosen = fits.argmax(axis=1)
    at = np.arange(count)
    across, down = across[at, chosen], down[at, chosen]
    none = ~fits.any(axis=1)
    # The largest part whose aspect ratio is allowed.
    narrowest, widest = cropping.aspect
    across[none] = np.minimum(widths[none], np.rint(heights[none] * widest))
    down[none] = np.minimum(heights[none], np.rint(widths[none] / narrowest))
    left = np.floor(drawn[:, -3] * (widths - across + 1))
    top = np.floor(drawn[:, -2] * (heights - down + 1))
    left[none] = (widths[none] - across[none]) // 2
    top[none] = (heights[none] - down[none]) // 2
    return Views(rows, _stack_boxes(left, top, across, down), drawn[:, -1] < 0.5)


def make_evaluation_views(images: LabelledImages, cropping: Cropping, rows: np.ndarray) -> Views:
    """Return views of the centres of the images in ``rows``, int64 (n,)."""
    widths, heights = images.widths[rows].astype(float), images.heights[rows].astype(float)
    share = cropping.pixels / cropping.evaluation_resize_pixels
    side = np.maximum(1, np.rint(np.minimum(widths, heights) * share))
    boxes = _stack_boxes((widths - side) // 2, (heights - side) // 2, side, side)
    return Views(rows, boxes, np.zeros(len(rows), bool))


def read_views(images: LabelledImages, views: Views, pixels: int) -> np.ndarray:
    """Return n views, uint8 (n, pixels, pixels, channels), without torch: Pillow resizes."""
    seen = np.empty((len(views.rows), pixels, pixels, images.channels), np.uint8)
    for at, row in enumerate(views.rows.tolist()):
        image, (left, top, right, bottom) = images.files.decode(row), views.boxes[at].tolist()
        part = image[top:bottom, left:right]
        if part.shape[:2] != (pixels, pixels):
            drawn = Image.fromarray(part[:, :, 0] if images.channels == 1 else part)
            resized = drawn.resize((pixels, pixels), Image.Resampling.BICUBIC)
            part = np.asarray(resized).reshape(pixels, pixels, images.channels)
        seen[at] = part[:, ::-1] if views.mirrored[at] else part
    return seen


def _stack_boxes(
    left: np.ndarray, top: np.ndarray, width: np.ndarray, height: np.ndarray
) -> np.ndarray:
    return np.stack([left, top, left + width, top + height], axis=1).astype(np.int64)
