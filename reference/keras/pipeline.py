"""The batches of a block by ``tf.data``: read in parallel and ahead, in the order of the run.

What ``Dataset.cache`` would keep, the stamps as stored, is in the memory of the file system.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from cepheid.reference.keras.backend import tf

# Batches. tf.data could choose it, but then the end of each block waits up to half a second.
AHEAD = 4


def read_ahead(
    read_batch: Callable[[int], tuple[np.ndarray, ...]], firsts: range
) -> Iterator[tuple[Any, ...]]:
    """Yield ``read_batch(first)`` for each of ``firsts``, as tensors (batch, …) of those shapes.

    Up to ``AHEAD`` are read at the same time, and as many ahead. An error of ``read_batch`` is
    raised as it is.
    """
    examples = read_batch(firsts[0])  # the others have its types and shapes
    yield tuple(map(tf.constant, examples))
    errors: list[Exception] = []

    def read_one(first: int) -> tuple[np.ndarray, ...]:
        try:
            return read_batch(int(first))
        except Exception as error:
            errors.append(error)
            raise

    def read(first: Any) -> tuple[Any, ...]:
        types = [example.dtype for example in examples]
        batch = tf.numpy_function(read_one, [first], types, stateful=False)
        for part, example in zip(batch, examples, strict=True):
            part.set_shape(example.shape)
        return tuple(batch)

    options = tf.data.Options()
    options.autotune.enabled = False
    others = firsts[1:]
    numbers = tf.data.Dataset.range(others.start, others.stop, others.step)
    batches = numbers.map(read, num_parallel_calls=AHEAD).prefetch(AHEAD).with_options(options)
    try:
        yield from batches
    except tf.errors.OpError as error:
        raise (errors[0] if errors else error) from None
