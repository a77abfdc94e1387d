"""Batches of ImageNet for one rank.

Which images a batch holds, and how each is cropped and mirrored, is a function of the run's seed
and the position in the stream of training samples only: the same for any number of ranks and
workers. Position p is sample p mod size of epoch p // size, each epoch in an order of its own.

Workers are threads: decoding and resizing run outside Python's lock, so that they share the packed
file, write into the batch itself (pinned where there is a GPU) and cost nothing to start.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from reference.data.imagenet.crops import (
    Cropping,
    Views,
    make_evaluation_views,
    make_training_views,
)
from reference.data.imagenet.images import Images
from reference.data.imagenet.jpeg import decode
from reference.data.order import SampleStream, Share
from rules.host import usable_processors

AHEAD = 2  # batches that are being decoded while one is used
PIECE = 16  # images that a worker takes at a time


def count_workers(has_gpu: bool, ranks_per_node: int) -> int:
    """Return the threads that decode images for one rank.

    A CPU needs far longer to train on an image than one thread needs to decode it.
    """
    return max(1, usable_processors() // ranks_per_node) if has_gpu else 1


class Loader:
    """A loader that crops, decodes and resizes for one rank, on ``workers`` threads of its own.

    Images come as uint8 (n, pixels, pixels, 3) and labels as int64 (n,), in pinned memory if
    ``pinned``. ``close`` ends the threads.
    """

    def __init__(
        self,
        images: Images,
        cropping: Cropping,
        seed: int,
        share: Share,
        workers: int = 1,
        pinned: bool = False,
    ) -> None:
        self.images, self.cropping, self.share, self.pinned = images, cropping, share, pinned
        self.stream = SampleStream(seed, images.train_samples)
        self._threads = ThreadPoolExecutor(workers, "decode")
        self._coming: deque[_Batch] = deque()
        self._coming_from = 0

    def next_batch(self, samples: int) -> tuple[Tensor, Tensor]:
        """Return this rank's share of the global batch after ``samples`` trained samples."""
        if samples != self._coming_from:
            self._forget()
            self._coming_from = samples
        step = self.share.ranks // self.share.partitions * self.share.batch
        while len(self._coming) <= AHEAD:
            self._coming.append(self._start_training(samples + len(self._coming) * step))
        self._coming_from += step
        return self._coming.popleft().wait()

    def evaluation_batches(self, batch: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield this rank's part of the validation set in batches of one shape.

        Every rank has the same number of batches. Each is images, labels, and which of them count,
        bool (batch,): images that only fill up the last batches do not count. Over all ranks every
        image counts once.
        """
        coming: deque[tuple[_Batch, Tensor]] = deque()
        for numbers, valid in self.share.split_evaluation(self.images.evaluation_samples, batch):
            rows = self.images.train_samples + numbers
            views = make_evaluation_views(self.images, self.cropping, rows)
            coming.append((self._start(views), torch.from_numpy(valid)))
            if len(coming) > AHEAD:
                yield _add_mask(*coming.popleft())
        while coming:
            yield _add_mask(*coming.popleft())

    def close(self) -> None:
        """End the threads."""
        self._forget()
        self._threads.shutdown()

    def _forget(self) -> None:
        for batch in self._coming:
            batch.cancel()
        self._coming.clear()

    def _start_training(self, samples: int) -> "_Batch":
        first, count = self.share.find_first(samples), self.share.batch
        return self._start(
            make_training_views(self.images, self.cropping, self.stream, first, count)
        )

    def _start(self, views: Views) -> "_Batch":
        count, size = len(views.rows), self.cropping.pixels
        batch = torch.empty((count, size, size, 3), dtype=torch.uint8, pin_memory=self.pinned)
        labels = torch.from_numpy(self.images.labels[views.rows])
        pieces = [
            self._threads.submit(_fill, batch, self.images, views, range(first, last))
            for first, last in _split(count)
        ]
        return _Batch(batch, labels.pin_memory() if self.pinned else labels, pieces)


@dataclass(frozen=True)
class _Batch:
    """A batch that is being decoded."""

    images: Tensor
    labels: Tensor
    pieces: list[Future[None]]

    def wait(self) -> tuple[Tensor, Tensor]:
        for piece in self.pieces:
            piece.result()
        return self.images, self.labels

    def cancel(self) -> None:
        for piece in self.pieces:
            piece.cancel()


def _add_mask(batch: _Batch, valid: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return *batch.wait(), valid


def _split(count: int) -> Iterator[tuple[int, int]]:
    return ((first, min(first + PIECE, count)) for first in range(0, count, PIECE))


def _fill(batch: Tensor, images: Images, views: Views, which: range) -> None:
    """Put the images ``which`` of ``views`` in their places."""
    for at in which:
        row = int(views.rows[at])
        whole = decode(images.read_file(row), int(images.kinds[row]))
        seen = resize(whole, views.boxes[at].tolist(), batch.shape[1])
        batch[at] = seen.flip(1) if views.mirrored[at] else seen


def resize(image: np.ndarray, box: list[int], size: int) -> Tensor:
    """Resize the part ``box`` of ``image``, uint8 (height, width, 3), to (size, size, 3).

    ``box`` is left, top, right, bottom. The interpolation is bicubic and averages where the image
    shrinks, as Pillow's does.
    """
    left, top, right, bottom = box
    part = torch.from_numpy(image)[top:bottom, left:right].permute(2, 0, 1)[None]
    small = functional.interpolate(part, (size, size), mode="bicubic", antialias=True)
    return small[0].permute(1, 2, 0)
