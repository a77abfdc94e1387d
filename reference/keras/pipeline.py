"""The batches of a block, read in parallel and ahead, in the order of the run.

On TensorFlow ``tf.data`` reads them (``on_tensorflow.read_ahead``).
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

Batch = tuple[np.ndarray, ...]
AHEAD = 4  # batches


def read_ahead(read_batch: Callable[[int], Batch], firsts: range) -> Iterator[Batch]:
    """Yield ``read_batch(first)`` for each of ``firsts``; ``AHEAD`` of them are read meanwhile.

    An error of ``read_batch`` is raised as it is.
    """
    with ThreadPoolExecutor(AHEAD) as pool:
        reading: deque[Future[Batch]] = deque()
        try:
            for first in firsts:
                reading.append(pool.submit(read_batch, first))
                if len(reading) > AHEAD:
                    yield reading.popleft().result()
            while reading:
                yield reading.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
