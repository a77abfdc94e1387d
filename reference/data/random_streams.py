"""Random numbers that depend on the run's seed and on their purpose, never on the rank."""

import zlib

import numpy as np


def make_generator(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """Make a generator for one purpose, e.g. ``make_generator(seed, "order", epoch)``.

    The same arguments give the same numbers on every rank and for any number of ranks.
    """
    entropy = [seed, zlib.crc32(purpose.encode()), *keys]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy)))
