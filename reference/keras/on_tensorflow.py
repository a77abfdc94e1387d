"""What Keras does not do alike on every backend, on TensorFlow.

Loaded by ``backend``, which has chosen TensorFlow. Several processes are workers of
``MultiWorkerMirroredStrategy``: each has all variables and its part of a batch.

The optimizers of Keras would clip the gradients of each worker and then add them up. So gradients
are averaged before they reach an optimizer, which must not add them up again.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from cepheid.reference.keras.meeting import find_addresses, find_local_rank, quiet_libraries
from cepheid.reference.machine.placement import LINGER_SECONDS, Placement
from cepheid.reference.machine.ranks import RankEndedError, read_rank_timeout
from cepheid.rules.errors import UserError

VERSION = f"tensorflow {tf.__version__}"
WAYS = {"off": "graph", "on": "XLA"}
OPTIONS_OF_NORMS: dict[str, Any] = {}
_met: list[Any] = []  # the strategy of several processes
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


def set_seed(seed: int) -> None:
    """Let layers begin with the weights of this seed, on all processes that have met.

    Keras forgets the strategy as it forgets earlier models.
    """
    keras.utils.set_random_seed(seed)
    if _met:
        tf.distribute.experimental_set_strategy(_met[0])


def read_peak_device_bytes() -> int:
    """Return the most bytes that were allocated on the first GPU at once."""
    return int(tf.config.experimental.get_memory_info("GPU:0")["peak"])


def join(place: Placement, host: str, port: int) -> None:
    """Meet the other processes of the run, before anything is computed. Raises UserError.

    A step is a graph then: XLA was not tried with sums over processes.
    """
    addresses = find_addresses(place, host, port)
    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) > 1:  # otherwise the launcher has chosen one
        local_rank = find_local_rank(place, addresses)
        if local_rank >= len(gpus):
            raise UserError(
                f"rank {place.rank} is local rank {local_rank}, and TensorFlow finds {len(gpus)} "
                "GPUs here; fix: start one rank for each GPU"
            )
        tf.config.set_visible_devices(gpus[local_rank], "GPU")
    timeout = read_rank_timeout()
    cluster = tf.train.ClusterSpec({"worker": list(addresses)})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, task_type="worker", task_id=place.rank, rpc_layer="grpc"
    )
    with quiet_libraries() as stderr:
        waiting = f"cepheid: waiting for the others of {', '.join(addresses[:10])}"
        notice = threading.Timer(timeout.notice_seconds, print, [waiting], {"file": stderr})
        notice.start()
        try:
            strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver)
        finally:
            notice.cancel()
    _met.append(strategy)
    keras.optimizers.Optimizer._all_reduce_sum_gradients = lambda _, pairs: pairs
    OPTIONS_OF_NORMS["synchronized"] = True
    del WAYS["on"]


def leave() -> None:
    """Part from the other processes, once all are ready; the first one serves them, so it is last.

    The others would print that it is gone. They stay a little, too: a sum that has ended on one
    process fails on another that has not got its part yet, if the first one is gone.
    """
    gather(b"")
    time.sleep(LINGER_SECONDS * (2 if _met[0].cluster_resolver.task_id == 0 else 1))


def gather(message: bytes) -> list[bytes]:
    """Return the messages of all processes, by rank."""
    sizes = _gather_rows(np.array([len(message)]))
    longest = max(1, int(sizes.max()))  # a sum of nothing ends the process
    padded = np.frombuffer(message.ljust(longest, b"\0"), np.uint8)
    rows = _gather_rows(padded).astype(np.uint8)
    return [row.tobytes()[: int(size)] for row, size in zip(rows, sizes.ravel(), strict=True)]


def _gather_rows(row: np.ndarray) -> np.ndarray:
    """Return the rows of all processes, (processes, values), of one row each, (values,)."""
    rows = np.zeros((_met[0].num_replicas_in_sync, len(row)), np.int32)
    rows[_met[0].cluster_resolver.task_id] = row
    with _notice_loss():
        return _add_up(rows).numpy()


@tf.function(input_signature=[tf.TensorSpec((None, None), tf.int32)])
def _add_up(rows: Any) -> Any:
    def add(mine: Any) -> Any:
        return tf.distribute.get_replica_context().all_reduce("SUM", tf.identity(mine))

    return _met[0].run(add, (rows,))


@contextmanager
def _notice_loss() -> Iterator[None]:
    """Raise RankEndedError where a sum over processes failed, because one of them has ended."""
    try:
        yield
    except (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError) as error:
        raise RankEndedError(
            "another rank has ended; fix: see what it printed, and start all ranks again",
            is_reported=False,
        ) from error


class Program:
    """Computations with the same variables."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = variables

    def trace(
        self, computation: Callable[..., Any], way: str, *, takes_parts: bool = False
    ) -> Callable[..., Any]:
        """Return ``computation`` as a graph, compiled by XLA if compiling is on.

        With ``takes_parts`` all processes call it together, each with its part of a batch.
        """
        traced: Callable[..., Any] = tf.function(computation, jit_compile=way == "on")
        if not takes_parts or not _met:
            return traced

        @tf.function
        def share(*arrays: Any) -> Any:
            return _met[0].run(computation, arrays)

        def call(*arrays: Any) -> Any:
            with _notice_loss():
                return share(*arrays)

        return call

    def differentiate(
        self, compute_loss: Callable[[], Any], trainable: Sequence[Any]
    ) -> tuple[Any, Sequence[Any]]:
        """Return the loss, a scalar, and its gradients, in the shapes of ``trainable``.

        They are means over all processes.
        """
        with tf.GradientTape() as tape:
            loss = compute_loss()
        of_parts = [loss, *tape.gradient(loss, [variable.value for variable in trainable])]
        loss, *gradients = tf.distribute.get_replica_context().all_reduce("MEAN", of_parts)
        return loss, gradients


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
