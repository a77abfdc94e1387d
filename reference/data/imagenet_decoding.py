"""From the bytes of an image file to pixels."""

import io

import numpy as np
from PIL import Image

KINDS = ("rgb", "grey", "cmyk", "other", "damaged")
"""What a file holds, by code; ``other``: no JPEG, or one in other colours."""

Box = tuple[float, float, float, float]
"""Left, top, right, bottom in pixels of the whole image."""


class Damaged(Exception):
    """The bytes are no image, or not a whole one."""


def examined(content: bytes) -> tuple[int, int, int]:
    """Height, width and the code of the kind of an image, which is decoded to its end.

    Raises Damaged if that fails.
    """
    try:
        with Image.open(io.BytesIO(content)) as image:
            image.load()
            codes = {"RGB": "rgb", "L": "grey", "CMYK": "cmyk"}
            kind = codes.get(image.mode, "other") if image.format == "JPEG" else "other"
            return image.height, image.width, KINDS.index(kind)
    except Exception as error:  # whatever a decoder makes of bytes that are no image
        raise Damaged(str(error)) from error


def decoded(content: bytes | memoryview, box: Box, pixels: int, mirror: bool) -> np.ndarray:
    """The part ``box`` of an image, resized by bicubic interpolation to (pixels, pixels, 3) uint8,
    mirrored left to right if ``mirror``."""
    with Image.open(io.BytesIO(content)) as image:
        part = image.convert("RGB").resize((pixels, pixels), Image.Resampling.BICUBIC, box)
    array = np.asarray(part)
    return array[:, ::-1] if mirror else array
