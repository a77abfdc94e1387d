"""What part of a stamp the networks see."""

import numpy as np


def middle(images: np.ndarray, pixels: int) -> np.ndarray:
    """The inner ``pixels`` × ``pixels`` of images (…, y, x); a view. ``pixels`` is as even or odd
    as the images are wide, so that what is in their middle stays there."""
    first = (images.shape[-1] - pixels) // 2
    inside = slice(first, first + pixels)
    return images[..., inside, inside]
