"""From the bytes of an image file to pixels, and what is wrong with the bytes.

libjpeg-turbo decodes, through simplejpeg; Pillow the few files that are no RGB or grey JPEG, and
the grey PNG files of radiographs.
"""

import io

import numpy as np
import simplejpeg
from PIL import Image

KINDS = ("rgb", "grey", "cmyk", "other", "imperfect", "damaged")
"""What a file holds, by code. ``other``: no JPEG, or one in other colours. ``imperfect``: whole,
but the decoder skips bytes that do not belong there, as in one image of the real ImageNet.
``damaged``: cannot be decoded, or is cut short, or the decoder had to invent a part of it."""

_KIND_OF_COLOURS = {"YCbCr": "rgb", "RGB": "rgb", "Gray": "grey", "CMYK": "cmyk", "YCCK": "cmyk"}
_HARMLESS = "extraneous bytes before marker"
_DAMAGED = (0, 0, KINDS.index("damaged"))
_BY_PILLOW = (KINDS.index("cmyk"), KINDS.index("other"))


def examine(content: bytes) -> tuple[int, int, int]:
    """Return height, width and the code of the kind of an image, after decoding all of it.

    Height and width of a damaged image are 0.
    """
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(content)
    except ValueError:  # no JPEG, which Pillow may know
        return _examine_with_pillow(content, "other")
    kind = _KIND_OF_COLOURS.get(colours, "other")
    try:
        simplejpeg.decode_jpeg(content, strict=True)
    except ValueError as error:
        kind = "imperfect" if _HARMLESS in str(error) else "damaged"
    if kind == "damaged":
        return _DAMAGED
    if KINDS.index(kind) in _BY_PILLOW:
        return _examine_with_pillow(content, kind)
    return height, width, KINDS.index(kind)


def decode(content: bytes | memoryview, kind: int) -> np.ndarray:
    """Decode an image to RGB, uint8 (height, width, 3); ``kind`` is the code from ``examine``."""
    if kind in _BY_PILLOW:
        with Image.open(io.BytesIO(content)) as image:
            return np.array(image.convert("RGB"))
    return simplejpeg.decode_jpeg(content, strict=False)


def _examine_with_pillow(content: bytes, kind: str) -> tuple[int, int, int]:
    try:
        height, width, _ = decode(content, KINDS.index(kind)).shape
    except Exception:  # whatever a decoder makes of bytes that are no image
        return _DAMAGED
    return height, width, KINDS.index(kind)


# Grey images in PNG files -------------------------------------------------------------------------

GREY, OTHER, DAMAGED = (KINDS.index(kind) for kind in ("grey", "other", "damaged"))


def examine_png(content: bytes) -> tuple[int, int, int]:
    """Return height, width and the code of the kind of a PNG file, after decoding all of it.

    The kind is ``grey``, ``other`` for other colours, or ``damaged``: then height and width are 0.
    """
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            image.verify()  # the checksums of all parts
        height, width, _ = decode_png(content).shape
    except Exception:  # whatever a decoder makes of bytes that are no image
        return 0, 0, DAMAGED
    return height, width, GREY if image.mode == "L" else OTHER


def decode_png(content: bytes | memoryview, kind: int = GREY) -> np.ndarray:
    """Decode a PNG file to grey, uint8 (height, width, 1); other colours are converted."""
    with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
        grey: np.ndarray = np.array(image.convert("L"))
    return grey[:, :, None]
