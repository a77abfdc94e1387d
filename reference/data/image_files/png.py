"""Grey images in PNG files, and what is wrong with their bytes. Pillow decodes."""

import io

import numpy as np
from PIL import Image

from cepheid.reference.data.image_files.jpeg import KINDS

GREY, OTHER, DAMAGED = (KINDS.index(kind) for kind in ("grey", "other", "damaged"))


def examine(content: bytes) -> tuple[int, int, int]:
    """Return height, width and the code of the kind of a PNG file, after decoding all of it.

    The kind is ``grey``, ``other`` for other colours, or ``damaged``: then height and width are 0.
    """
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            image.verify()  # the checksums of all parts
        height, width, _ = decode(content).shape
    except Exception:  # whatever a decoder makes of bytes that are no image
        return 0, 0, DAMAGED
    return height, width, GREY if image.mode == "L" else OTHER


def decode(content: bytes | memoryview, kind: int = GREY) -> np.ndarray:
    """Decode a PNG file to grey, uint8 (height, width, 1); other colours are converted."""
    with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
        grey: np.ndarray = np.array(image.convert("L"))
    return grey[:, :, None]
