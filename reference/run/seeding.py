"""Random numbers that depend on the run's seed and on their purpose, never on the rank."""

import random
import zlib

import numpy as np


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, NumPy and torch, from which weights are initialised."""
    import torch  # here, because data and their order need no framework

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def make_generator(seed: int, purpose: str, *keys: int) -> np.random.Generator:
    """Make a generator for one purpose, e.g. ``make_generator(seed, "order", epoch)``.

    The same arguments give the same numbers on every rank and for any number of ranks.
    """
    entropy = [seed, zlib.crc32(purpose.encode()), *keys]
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(entropy)))
