"""What a network sees of a radiograph: all of it, mirrored half the time in training."""

import numpy as np
from PIL import Image

from cepheid.reference.data.imagenet.crops import Cropping, Views
from cepheid.reference.data.radiographs import Radiographs


def make_cropping(pixels: int) -> Cropping:
    """Return views of the whole image, resized to ``pixels`` a side."""
    return Cropping(pixels, pixels, area=(1.0, 1.0), aspect=(1.0, 1.0))


def read_views(images: Radiographs, views: Views, pixels: int) -> np.ndarray:
    """Return n views, uint8 (n, pixels, pixels, 1), for tasks without torch; Pillow resizes."""
    seen = np.empty((len(views.rows), pixels, pixels, 1), np.uint8)
    for at, row in enumerate(views.rows.tolist()):
        image = images.files.decode(row)
        if image.shape[:2] != (pixels, pixels):
            whole = Image.fromarray(image[:, :, 0]).resize(
                (pixels, pixels), Image.Resampling.BICUBIC
            )
            image = np.asarray(whole)[:, :, None]
        seen[at] = image[:, ::-1] if views.mirrored[at] else image
    return seen
