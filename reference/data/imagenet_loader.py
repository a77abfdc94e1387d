"""Batches of ImageNet for one rank.

Which images a batch holds, and how each is cropped and mirrored, is a function of the run's seed
and the position in the stream of training samples only: the same for any number of ranks and
workers. Position p is sample p mod size of epoch p // size, each epoch in an order of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reference.data.imagenet import Images
from reference.data.imagenet_crops import Cropping, Views, evaluation_views, training_views
from reference.data.imagenet_decoding import decoded
from reference.data.order import SampleStream


@dataclass(frozen=True)
class Share:
    """This rank's part of every global batch: ``batch`` samples, the ``rank``-th of ``ranks``."""

    rank: int
    ranks: int
    batch: int


class Loader:
    """Reads, crops and decodes for one rank; ``workers`` processes work ahead (0: none)."""

    def __init__(
        self,
        images: Images,
        cropping: Cropping,
        seed: int,
        share: Share,
        workers: int = 0,
    ) -> None:
        self.images, self.cropping, self.seed, self.share = images, cropping, seed, share
        self.stream = SampleStream(seed, images.train_samples)

    def next_batch(self, samples: int) -> tuple[Tensor, Tensor]:
        """This rank's share of the global batch that follows ``samples`` trained samples.

        Returns images, uint8 (batch, pixels, pixels, 3), and labels, int64 (batch,).
        """
        first = samples + self.share.rank * self.share.batch
        views = training_views(self.images, self.cropping, self.stream, first, self.share.batch)
        return self._read(views)

    def evaluation_batches(self, batch: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """This rank's part of the validation set in batches of one shape, as many on every rank.

        Yields images and labels as ``next_batch`` does, and which of them count, bool (batch,):
        what fills up the last batches does not. Over all ranks every image counts once.
        """
        total = self.images.evaluation_samples
        for first in range(0, total, batch * self.share.ranks):
            rows = first + self.share.rank * batch + np.arange(batch)
            valid = rows < total
            views = evaluation_views(
                self.images, self.cropping, self.images.train_samples + np.minimum(rows, total - 1)
            )
            yield *self._read(views), torch.from_numpy(valid)

    def close(self) -> None:
        """End the workers."""

    def _read(self, views: Views) -> tuple[Tensor, Tensor]:
        size = self.cropping.pixels
        pixels = np.empty((len(views.rows), size, size, 3), np.uint8)
        for target, row, box, mirror in zip(
            pixels, views.rows, views.boxes.tolist(), views.mirrored, strict=True
        ):
            target[...] = decoded(self.images.file(row), tuple(box), size, bool(mirror))
        return torch.from_numpy(pixels), torch.from_numpy(self.images.labels[views.rows])
