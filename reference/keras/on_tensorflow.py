"""What Keras does not do alike on every backend, on TensorFlow; see ``backend.Engine``.

Loaded by ``backend``, which has chosen TensorFlow.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

VERSION = f"tensorflow {tf.__version__}"
WAYS: Mapping[str, str] = {"off": "graph", "on": "XLA"}
# Batches. tf.data could choose it, but then the end of each block waits up to half a second.
AHEAD = 4

tf.config.experimental.enable_tensor_float_32_execution(False)  # fp32 is float32 on GPUs, too


def set_threads(count: int) -> None:
    """Run one operation at a time on ``count`` threads; RuntimeError after a computation."""
    tf.config.threading.set_intra_op_parallelism_threads(count)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def count_threads() -> int:
    """Return on how many threads the processor computes."""
    return int(tf.config.threading.get_intra_op_parallelism_threads())


def name_devices() -> list[str]:
    """Return the names of the GPUs; none where the processor computes."""
    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    return [str(detail.get("device_name", "GPU")) for detail in details]


def count_devices() -> int:
    """Return 1: TensorFlow computes on one device in a process."""
    return 1


def read_peak_device_bytes() -> int:
    """Return the most bytes that were allocated on the first GPU at once."""
    return int(tf.config.experimental.get_memory_info("GPU:0")["peak"])


class Program:
    """Computations with the same variables."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = variables

    def trace(
        self, computation: Callable[..., Any], way: str, *, takes_parts: bool = False
    ) -> Callable[..., Any]:
        """Return ``computation`` as a graph, compiled by XLA if compiling is on."""
        traced: Callable[..., Any] = tf.function(computation, jit_compile=way == "on")
        return traced

    def differentiate(
        self, compute_loss: Callable[[], Any], trainable: Sequence[Any]
    ) -> tuple[Any, Sequence[Any]]:
        """Return the loss, a scalar, and its gradients, in the shapes of ``trainable``."""
        with tf.GradientTape() as tape:
            loss = compute_loss()
        return loss, tape.gradient(loss, trainable)


def read_ahead(
    read_batch: Callable[[int], tuple[np.ndarray, ...]], firsts: range
) -> Iterator[tuple[Any, ...]]:
    """Yield ``read_batch(first)`` for each of ``firsts``, as tensors (batch, …) of those shapes.

    ``tf.data`` reads up to ``AHEAD`` at the same time, and as many ahead. What ``Dataset.cache``
    would keep, the data as stored, is in the memory of the file system. An error of ``read_batch``
    is raised as it is.
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
