"""COCO's masks: polygons and run lengths as distributed, and COCO's run-length code, as stored."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from cepheid.reference.data.detection.average_precision import Mask
from cepheid.reference.data.store import StoreError


class RunLengths(msgspec.Struct):
    """A mask of ``size``, height and width: so many pixels without and with it in turn, by columns.

    As text ``counts`` are compressed.
    """

    size: tuple[int, int]
    counts: list[int] | str


FARTHEST = 10  # sides of the image that a point of a polygon may be away

Outline = list[list[float]] | RunLengths
"""Polygons, x and y in turn, or run lengths."""


def encode(outline: Outline, height: int, width: int) -> bytes:
    """Return the compressed run lengths of a mask in an image of ``height`` × ``width``.

    Raises StoreError for what is no mask of such an image.
    """
    from faster_coco_eval import mask  # not needed where only boxes are compared

    shape: Any
    if isinstance(outline, RunLengths):
        counts = outline.counts
        pixels = height * width if isinstance(counts, str) else sum(counts)
        is_negative = not isinstance(counts, str) and min(counts, default=0) < 0
        if outline.size != (height, width) or pixels != height * width or is_negative:
            raise StoreError(
                f"run lengths of {pixels:,} pixels for {outline.size[0]} × {outline.size[1]}, "
                f"expected {height} × {width}, and none below 0"
            )
        shape = {"size": [height, width], "counts": counts}
    else:
        polygons = [polygon for polygon in outline if len(polygon) >= 6]
        if len(polygons) < len(outline) or any(len(polygon) % 2 for polygon in polygons):
            raise StoreError("a polygon has fewer than three points, or an odd number of values")
        if not polygons:
            raise StoreError("an outline has no polygon")
        far = FARTHEST * max(height, width)
        if not all(abs(value) <= far for polygon in polygons for value in polygon):
            raise StoreError(f"a polygon has a point more than {far:,} pixels away")
        shape = polygons
    try:
        found = mask.segmToRle(shape, width, height)
        mask.decode(found)  # compressed run lengths may be those of another number of pixels
    except (RuntimeError, ValueError, OverflowError) as error:
        raise StoreError(f"it cannot be read: {error}") from error
    code = found["counts"]
    return code if isinstance(code, bytes) else code.encode()


def crop(codes: Sequence[Mask], boxes: np.ndarray, size: int) -> np.ndarray:
    """Return masks within their boxes, uint8 (n, size, size), 0 or 1.

    ``boxes`` (n, 4) are left, top, right, bottom in pixels. Each value is the pixel at the centre
    of its part of the box.
    """
    from faster_coco_eval import mask

    cropped = np.zeros((len(codes), size, size), np.uint8)
    parts = (np.arange(size) + 0.5) / size
    for target, code, (left, top, right, bottom) in zip(cropped, codes, boxes, strict=True):
        bits = mask.decode(dict(code))
        height, width = bits.shape
        down = np.clip(top + (bottom - top) * parts, 0, height - 1).astype(np.int64)
        across = np.clip(left + (right - left) * parts, 0, width - 1).astype(np.int64)
        target[:] = bits[down[:, None], across]
    return cropped
