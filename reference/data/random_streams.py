"""Random numbers that depend on the run's seed and on their purpose, never on the rank."""

import zlib
from functools import lru_cache

import numpy as np

BLOCK = 256  # positions of a stream whose numbers are drawn together


def make_generator(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """Make a generator for one purpose, e.g. ``make_generator(seed, "order", epoch)``.

    The same arguments give the same numbers on every rank and for any number of ranks.
    """
    entropy = [seed, zlib.crc32(purpose.encode()), *keys]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy)))


def draw_rows(seed: int, purpose: str, positions: range, numbers: int, *keys: int) -> np.ndarray:
    """Draw numbers in [0, 1) for positions of a stream of samples, (positions, numbers).

    A position has the same ones whichever batch it is in.
    """
    blocks = range(positions.start // BLOCK, (positions.stop - 1) // BLOCK + 1)
    drawn = [_draw_block(seed, purpose, numbers, block, *keys) for block in blocks]
    first = positions.start - blocks.start * BLOCK
    return np.concatenate(drawn)[first : first + len(positions)]


@lru_cache(maxsize=256)
def _draw_block(seed: int, purpose: str, numbers: int, *keys: int) -> np.ndarray:
    return make_generator(seed, purpose, *keys).random((BLOCK, numbers))
