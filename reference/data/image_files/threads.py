"""Batches of images that threads decode while earlier ones are used.

Workers are threads: decoding and resizing run outside Python's lock, so that they share the packed
file, write into the batch itself (pinned where there is a GPU) and cost nothing to start.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from cepheid.reference.data.ahead import Prefetcher, take_in_turn
from cepheid.reference.data.order import SampleStream, Share

PIECE = 16  # images that a worker takes at a time


@dataclass(frozen=True)
class ComingBatch:
    """A batch that threads are filling."""

    tensors: tuple[Tensor, ...]
    pieces: list[Future[None]]

    def result(self) -> tuple[Tensor, ...]:
        """Return the tensors, (n, …) each, when all is in them."""
        for piece in self.pieces:
            piece.result()
        return self.tensors

    def cancel(self) -> None:
        """Give up what has not begun."""
        for piece in self.pieces:
            piece.cancel()


class ImageLoader:
    """Batches of a dataset of images for one rank, on ``workers`` threads of its own.

    ``variation`` says how images are cut and varied. Tensors are in pinned memory if ``pinned``.
    The rank's share of a batch comes in ``parts`` of equal size, such that only a few of them are
    in memory. ``close`` ends the threads. A subclass starts batches with ``fill_batch``.
    """

    def __init__(
        self,
        images: Any,
        variation: Any,
        seed: int,
        share: Share,
        workers: int = 1,
        pinned: bool = False,
        parts: int = 1,
    ) -> None:
        self.images, self.variation, self.share, self.pinned = images, variation, share, pinned
        self.part_samples = share.batch // parts
        self.splits = images.train_samples, images.evaluation_samples
        self.stream = SampleStream(seed, images.train_samples)
        self._threads = ThreadPoolExecutor(workers, "decode")
        self._training = Prefetcher(self._start_part, share.global_batch, parts)

    def start_training(self, first: int, count: int) -> ComingBatch:
        """Start ``count`` samples of the stream from position ``first`` on."""
        raise NotImplementedError

    def start_evaluation(self, numbers: np.ndarray, valid: np.ndarray) -> ComingBatch:
        """Start images ``numbers`` of the evaluation set, (n,), of which those ``valid`` count."""
        raise NotImplementedError

    def next_batch(self, samples: int, part: int = 0) -> Any:
        """Return the tensors (n, …) of a part of this rank's share of the batch after ``samples``.

        The images come first.
        """
        return self._training.take(samples, part)

    def evaluation_batches(self, batch: int) -> Iterator[tuple[Tensor, ...]]:
        """Return this rank's part of the evaluation set in batches of one shape.

        Every rank has the same number of batches. The last tensor of each says which images count,
        bool (batch,): those that only fill up the last batches do not. Over all ranks every image
        counts once.
        """
        shares = self.share.split_evaluation(self.splits[1], batch)
        return take_in_turn(lambda share: self.start_evaluation(*share), shares)

    def fill_batch(
        self, images: Tensor, fill: Callable[[range], None], others: Iterable[np.ndarray]
    ) -> ComingBatch:
        """Start to fill ``images`` (n, …) by calls of ``fill`` for some places each.

        ``others``, (n, …) each, come with them.
        """
        tensors = map(torch.from_numpy, others)
        kept = (tensor.pin_memory() if self.pinned else tensor for tensor in tensors)
        places = range(len(images))
        pieces = [places[first : first + PIECE] for first in places[::PIECE]]
        return ComingBatch((images, *kept), [self._threads.submit(fill, piece) for piece in pieces])

    def close(self) -> None:
        """End the threads."""
        self._training.forget()
        self._threads.shutdown()

    def _start_part(self, place: tuple[int, int]) -> ComingBatch:
        samples, part = place
        first = self.share.find_first(samples) + part * self.part_samples
        return self.start_training(first, self.part_samples)


def resize(
    image: np.ndarray, box: Sequence[int], size: int | tuple[int, int], mode: str = "bicubic"
) -> Tensor:
    """Resize the part ``box`` of ``image``, uint8 (height, width, 3), to (size, size, 3).

    ``size`` may also be a height and a width. ``box`` is left, top, right, bottom. The
    interpolation averages where the image shrinks, as Pillow's does.
    """
    left, top, right, bottom = box
    part = torch.from_numpy(image)[top:bottom, left:right].permute(2, 0, 1)[None]
    height, width = size if isinstance(size, tuple) else (size, size)
    small = functional.interpolate(part, (height, width), mode=mode, antialias=True)
    return small[0].permute(1, 2, 0)
