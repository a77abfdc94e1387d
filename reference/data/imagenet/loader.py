"""Batches of ImageNet for one rank.

Which images a batch holds, and how each is cropped and mirrored, is a function of the run's seed
and the position in the stream of training samples only: the same for any number of ranks and
workers. Position p is sample p mod size of epoch p // size, each epoch in an order of its own.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
from torch import Tensor

from cepheid.reference.data.image_files.threads import (
    ComingBatch,
    Prefetcher,
    resize,
    start_batch,
    wait_in_turn,
)
from cepheid.reference.data.imagenet.crops import (
    Cropping,
    Images,
    Views,
    make_evaluation_views,
    make_training_views,
)
from cepheid.reference.data.order import SampleStream, Share
from cepheid.rules.host import usable_processors


def count_workers(has_gpu: bool, ranks_per_node: int) -> int:
    """Return the threads that decode images for one rank.

    A CPU needs far longer to train on an image than one thread needs to decode it.
    """
    return max(1, usable_processors() // ranks_per_node) if has_gpu else 1


class Loader:
    """A loader that crops, decodes and resizes for one rank, on ``workers`` threads of its own.

    Images come as uint8 (n, pixels, pixels, 3) and labels as int64 (n,), in pinned memory if
    ``pinned``. The rank's share of a batch comes in ``parts`` of equal size, such that only a few
    of them are in memory. ``close`` ends the threads.
    """

    channels = 3

    def __init__(
        self,
        images: Images,
        cropping: Cropping,
        seed: int,
        share: Share,
        workers: int = 1,
        pinned: bool = False,
        parts: int = 1,
    ) -> None:
        self.images, self.cropping, self.share, self.pinned = images, cropping, share, pinned
        self.part_samples = share.batch // parts
        self.stream = SampleStream(seed, images.train_samples)
        self._threads = ThreadPoolExecutor(workers, "decode")
        self._training = Prefetcher(self._start_training, share.global_batch, parts)

    def next_batch(self, samples: int, part: int = 0) -> tuple[Tensor, Tensor]:
        """Return a part of this rank's share of the global batch after ``samples`` samples."""
        images, labels = self._training.take(samples, part)
        return images, labels

    def evaluation_batches(self, batch: int) -> Iterator[tuple[Tensor, ...]]:
        """Return this rank's part of the validation set in batches of one shape.

        Every rank has the same number of batches. Each is images, labels, and which of them count,
        bool (batch,): images that only fill up the last batches do not count. Over all ranks every
        image counts once.
        """
        return wait_in_turn(self._start_evaluation(batch))

    def close(self) -> None:
        """End the threads."""
        self._training.forget()
        self._threads.shutdown()

    def _start_training(self, samples: int, part: int) -> ComingBatch:
        first = self.share.find_first(samples) + part * self.part_samples
        return self._start(
            make_training_views(self.images, self.cropping, self.stream, first, self.part_samples)
        )

    def _start_evaluation(self, batch: int) -> Iterator[ComingBatch]:
        for numbers, valid in self.share.split_evaluation(self.images.evaluation_samples, batch):
            rows = self.images.train_samples + numbers
            views = make_evaluation_views(self.images, self.cropping, rows)
            yield self._start(views, torch.from_numpy(valid))

    def _start(self, views: Views, *others: Tensor) -> ComingBatch:
        count, size = len(views.rows), self.cropping.pixels
        batch = torch.empty(
            (count, size, size, self.channels), dtype=torch.uint8, pin_memory=self.pinned
        )
        labels = torch.from_numpy(self.images.labels[views.rows])
        labels = labels.pin_memory() if self.pinned else labels
        fill = partial(_fill, batch, self.images, views)
        return start_batch(self._threads, (batch, labels, *others), fill)


def _fill(batch: Tensor, images: Images, views: Views, which: range) -> None:
    """Put the images ``which`` of ``views`` in their places."""
    for at in which:
        whole = images.files.decode(int(views.rows[at]))
        seen = resize(whole, views.boxes[at].tolist(), batch.shape[1])
        batch[at] = seen.flip(1) if views.mirrored[at] else seen
