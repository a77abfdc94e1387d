"""Batches of ImageNet for one rank.

Which images a batch holds, and how each is cropped and mirrored, is a function of the run's seed
and the position in the stream of training samples only: the same for any number of ranks and
workers. Position p is sample p mod size of epoch p // size, each epoch in an order of its own.
"""

from functools import partial

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from cepheid.reference.data.image_files.crops import (
    Views,
    make_evaluation_views,
    make_training_views,
)
from cepheid.reference.data.image_files.packing import LabelledImages
from cepheid.reference.data.image_files.threads import ComingBatch, ImageLoader, resize


class Loader(ImageLoader):
    """A loader of labelled images, (n, pixels, pixels, channels) uint8, cut as a ``Cropping`` says.

    Labels follow, (n,) or (n, …), and in evaluation which of the images count, bool (n,).
    """

    @override
    def start_training(self, first: int, count: int) -> ComingBatch:
        views = make_training_views(self.images, self.variation, self.stream, first, count)
        return self._start(views)

    @override
    def start_evaluation(self, numbers: np.ndarray, valid: np.ndarray) -> ComingBatch:
        rows = self.images.train_samples + numbers
        return self._start(make_evaluation_views(self.images, self.variation, rows), valid)

    def _start(self, views: Views, *others: np.ndarray) -> ComingBatch:
        size = self.variation.pixels
        shape = (len(views.rows), size, size, self.images.channels)
        batch = torch.empty(shape, dtype=torch.uint8, pin_memory=self.pinned)
        fill = partial(_fill, batch, self.images, views)
        return self.fill_batch(batch, fill, (self.images.labels[views.rows], *others))


def _fill(batch: Tensor, images: LabelledImages, views: Views, which: range) -> None:
    for at in which:
        whole = images.files.decode(int(views.rows[at]))
        seen = resize(whole, views.boxes[at].tolist(), batch.shape[1])
        batch[at] = seen.flip(1) if views.mirrored[at] else seen
