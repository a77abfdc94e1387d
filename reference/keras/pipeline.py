"""The batches of a task by ``tf.data``, in the order of the run: read in parallel and ahead.

Tasks hand arrays to their steps instead; ``cepheid measure speed NAME --only input`` compares the
two. What ``Dataset.cache`` would keep, the stamps as stored, is in the memory of the file system.
"""

from collections.abc import Iterator
from typing import Any

from reference.keras.backend import tf
from reference.keras.task import KerasTask, Tensor


def read_ahead(task: KerasTask) -> Iterator[tuple[Tensor, ...]]:
    """Yield the batches that follow the ``samples`` of the task, without end.

    A batch has the shapes of ``make_noise_arrays``; of galaxies they are (batch, bands, y, x) for
    the images and (batch, …) for what belongs to them. ``tf.data`` chooses how many are read at the
    same time and ahead.
    """
    first, size = task.samples, task.config.global_batch_size
    examples = task.make_noise_arrays(size)

    def read(number: Any) -> tuple[Tensor, ...]:
        batch = tf.numpy_function(
            lambda step: task.read_batch(first + int(step) * size),
            [number],
            [example.dtype for example in examples],
            stateful=False,
        )
        for part, example in zip(batch, examples, strict=True):
            part.set_shape(example.shape)
        return tuple(batch)

    numbers = tf.data.Dataset.counter()
    yield from numbers.map(read, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
