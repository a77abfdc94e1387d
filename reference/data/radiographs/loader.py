"""Batches of radiographs: grey, whole, mirrored half the time in training."""

from cepheid.reference.data.imagenet import loader


class Loader(loader.Loader):
    """A loader of grey images, uint8 (n, pixels, pixels, 1), and labels, float32 (n, 14)."""

    channels = 1
