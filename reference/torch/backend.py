"""Start runs on torch and free them afterwards, as ``reference/keras/backend.py`` does for Keras.

A run takes from here what it needs of the framework that the user has chosen.
"""

import gc

import torch

from cepheid.reference.torch.ranks.distributed import plan_ranks, start_ranks

__all__ = [
    "WEIGHTS_SUFFIX",
    "free_earlier_tasks",
    "plan_ranks",
    "read_peak_device_bytes",
    "start_ranks",
]

WEIGHTS_SUFFIX = ".pt"


def free_earlier_tasks() -> None:
    """Free the tasks of earlier runs and what was compiled for them.

    A task and its compiled functions refer to each other, so that only the garbage collector frees
    them. Until then they keep memory and mapped pages of the dataset, which ``cache_clear`` then
    cannot drop. The compiler also stops compiling after a few functions of the same name.
    """
    gc.collect()
    torch.compiler.reset()


def read_peak_device_bytes() -> int:
    """Return the most bytes that were allocated on this rank's accelerator at once."""
    return int(torch.cuda.max_memory_allocated())
