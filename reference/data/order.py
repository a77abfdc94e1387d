"""The order in which training samples are visited: an endless stream of shuffled epochs."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cepheid.reference.data.random_streams import make_generator

ORIENTATIONS = 8  # of a square: flip x, flip y, transpose


class SampleStream:
    """An endless stream of samples: every epoch has its own random order.

    Position p of the stream is sample p mod size of epoch p // size. The stream is the same for any
    number of ranks and any batch size.
    """

    def __init__(self, seed: int, size: int) -> None:
        self.seed, self.size = seed, size
        self._epoch = lru_cache(maxsize=2)(self._draw_epoch)

    def take(self, first: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return sample numbers and orientations of ``count`` positions from ``first`` on.

        Both are integers (count,): numbers in [0, size), orientations in [0, 8).
        """
        samples, orientations = [], []
        while count > 0:
            epoch, start = divmod(first, self.size)
            stop = min(start + count, self.size)
            order, codes = self._epoch(epoch)
            samples.append(order[start:stop])
            orientations.append(codes[start:stop])
            first, count = first + stop - start, count - (stop - start)
        return np.concatenate(samples), np.concatenate(orientations)

    def _draw_epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        order = make_generator(self.seed, "order", epoch).permutation(self.size)
        codes = make_generator(self.seed, "orientation", epoch).integers(
            ORIENTATIONS, size=self.size
        )
        return order, codes


@dataclass(frozen=True)
class Share:
    """This rank's part of every global batch: ``batch`` samples, the ``rank``-th of ``ranks``.

    In training each ``partitions`` consecutive ranks have the same samples, or share each image
    (``cepheid.reference.torch.spatial``).
    """

    rank: int
    ranks: int
    batch: int
    partitions: int = 1

    @property
    def global_batch(self) -> int:
        """Return the samples of one step, of all ranks."""
        return self.ranks // self.partitions * self.batch

    def find_first(self, samples: int) -> int:
        """Return the stream's position of this rank's part of the batch after ``samples``."""
        return samples + self.rank // self.partitions * self.batch

    def split_evaluation(self, total: int, batch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the numbers of this rank's evaluation samples in batches of one length.

        Every rank has the same number of batches. Each is the numbers in [0, total), (batch,), and
        which of them count, bool (batch,): those that only fill up the last batches do not. Over
        all ranks every sample counts once.
        """
        step = batch * self.ranks
        for first in range(self.rank * batch, -(-total // step) * step, step):
            places = np.arange(first, first + batch)
            yield np.minimum(places, total - 1), places < total
