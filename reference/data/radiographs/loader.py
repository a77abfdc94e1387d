"""Batches of radiographs: grey, whole, mirrored half the time in training."""

from reference.data.imagenet import loader
from reference.data.imagenet.crops import Cropping


class Loader(loader.Loader):
    """A loader of grey images, uint8 (n, pixels, pixels, 1), and labels, float32 (n, 14)."""

    channels = 1


def make_cropping(pixels: int) -> Cropping:
    """Return views of the whole image, resized to ``pixels`` a side."""
    return Cropping(pixels, pixels, area=(1.0, 1.0), aspect=(1.0, 1.0))
