"""The order in which training samples are visited: an endless stream of shuffled epochs."""

from functools import lru_cache

import numpy as np

from reference.run.seeding import make_generator

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
