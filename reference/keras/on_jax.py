"""What Keras does not do alike on every backend, on JAX: processors, GPUs and TPUs.

JAX computes with values, not with variables: a computation gets the values
of all variables and returns those that it has changed, weights, statistics and the state of the
optimizer alike. All devices of all processes form one mesh. Each has the variables and its part of
a batch, so that a mean over the batch, such as that of a normalisation, is one over all devices.
"""

import os
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import keras
import numpy as np
from jax.experimental import multihost_utils
from jax.extend.backend import clear_backends
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cepheid.reference.data.ahead import read_ahead
from cepheid.reference.machine.placement import Placement

__all__ = ["read_ahead"]

VERSION = f"jax {jax.__version__}"
WAYS: Mapping[str, str] = {"on": "XLA"}
OPTIONS_OF_NORMS: Mapping[str, Any] = {}
THREADS_VARIABLE = "NPROC"  # read by XLA when it starts
BATCH = "batch"  # the one axis of the mesh
FLAGS = "XLA_FLAGS"
# XLA ends a process whose threads or partners are late: by 40 seconds, which other work may take.
PATIENCE = " ".join(
    f"--xla_cpu_collective_{name}_seconds=1800"
    for name in ("timeout", "call_warn_stuck_timeout", "call_terminate_timeout")
)

jax.config.update("jax_default_matmul_precision", "float32")  # fp32 is float32 on TPUs, too


def set_threads(count: int) -> None:
    """Compute on ``count`` threads of the processor; arrays made with another number are lost.

    Raises RuntimeError among several processes.
    """
    if jax.distributed.is_initialized():
        raise RuntimeError("processes have met")
    os.environ[THREADS_VARIABLE] = str(count)
    clear_backends()


def count_threads() -> int:
    """Return on how many threads the processor computes."""
    return int(os.environ[THREADS_VARIABLE])


def name_devices() -> list[str]:
    """Return the names of this process' accelerators; none where the processor computes."""
    return [device.device_kind for device in jax.local_devices() if device.platform != "cpu"]


def count_devices() -> int:
    """Return how many devices share a batch; a processor may count as several."""
    return jax.device_count()


def set_seed(seed: int) -> None:
    """Let layers begin with the weights of this seed; Keras' function would load TensorFlow."""
    random.seed(seed)  # layers draw their seeds by it


def read_peak_device_bytes() -> int:
    """Return the most bytes that were allocated on the first accelerator at once."""
    return int(jax.local_devices()[0].memory_stats()["peak_bytes_in_use"])


def join(place: Placement, host: str, port: int) -> None:
    """Meet the other processes of the run, before anything is computed.

    A process that has accelerators takes those that its launcher shows it, on TPUs those of its
    host.
    """
    os.environ[FLAGS] = f"{PATIENCE} {os.environ.get(FLAGS, '')}"  # the last one counts
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # Two computations of processors that run at once would mix up their messages.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    jax.distributed.initialize(f"{host}:{port}", place.world_size, place.rank)


def leave() -> None:
    """Part from the other processes, of which none waits for this one any more."""
    jax.distributed.shutdown()


def gather(message: bytes) -> list[bytes]:
    """Return the messages of all processes, by rank."""
    sizes = multihost_utils.process_allgather(np.array([len(message)]))
    padded = np.frombuffer(message.ljust(int(sizes.max()), b"\0"), np.uint8)
    rows = multihost_utils.process_allgather(padded)
    return [row.tobytes()[: int(size)] for row, size in zip(rows, sizes.ravel(), strict=True)]


class Program:
    """Computations with the same variables."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = variables

    def trace(
        self, computation: Callable[..., Any], way: str, *, takes_parts: bool = False
    ) -> Callable[..., Any]:
        """Return ``computation``, compiled for each shape of its arrays (batch, …).

        With ``takes_parts`` all processes call it together, each with its part of a batch; else a
        process computes by itself, since only the first one reports on a run.
        """
        mesh = Mesh(jax.devices() if takes_parts else jax.local_devices(), (BATCH,))
        everywhere = NamedSharding(mesh, PartitionSpec())
        divided = NamedSharding(mesh, PartitionSpec(BATCH))

        def place(array: np.ndarray) -> Any:
            # Only one process has an uneven one: ``split_batch`` refuses it on several.
            if len(array) % jax.local_device_count():
                return _copy(array, everywhere)
            return jax.make_array_from_process_local_data(divided, array)

        def run(values: Sequence[Any], arrays: Sequence[Any]) -> tuple[Any, Mapping[int, Any]]:
            with keras.StatelessScope(zip(self.variables, values, strict=True)) as scope:
                before = [*map(scope.get_current_value, self.variables)]
                result = computation(*arrays)
            return result, self._find_changes(scope, before)

        compiled = jax.jit(run, out_shardings=everywhere)

        def call(*arrays: Any) -> Any:
            for variable in self.variables:
                if variable.value.sharding != everywhere:  # assigned elsewhere
                    variable.assign(_copy(variable.value, everywhere))
            values = [variable.value for variable in self.variables]
            result, changes = compiled(values, [*map(place, arrays)])
            for number, value in changes.items():
                self.variables[number].assign(value)
            return result

        return call

    def differentiate(
        self, compute_loss: Callable[[], Any], trainable: Sequence[Any]
    ) -> tuple[Any, Sequence[Any]]:
        """Return the loss, a scalar, and its gradients, in the shapes of ``trainable``."""
        kept = [variable.value for variable in self.variables]

        def compute(values: Sequence[Any]) -> tuple[Any, Mapping[int, Any]]:
            given = [*zip(self.variables, kept, strict=True), *zip(trainable, values, strict=True)]
            with keras.StatelessScope(given) as scope:
                before = [*map(scope.get_current_value, self.variables)]
                loss = compute_loss()
            return loss, self._find_changes(scope, before)

        differentiated = jax.value_and_grad(compute, has_aux=True)
        (loss, changes), gradients = differentiated([variable.value for variable in trainable])
        for number, value in changes.items():
            self.variables[number].assign(value)
        return loss, gradients

    def _find_changes(self, scope: Any, before: Sequence[Any]) -> Mapping[int, Any]:
        """Return the values that a computation has changed, by the number of the variable."""
        after = map(scope.get_current_value, self.variables)
        pairs = enumerate(zip(after, before, strict=True))
        return {number: value for number, (value, old) in pairs if value is not old}


def _copy(array: Any, everywhere: NamedSharding) -> Any:
    """Return an array of any shape that is on each device."""
    held = np.asarray(array)
    return jax.make_array_from_callback(held.shape, everywhere, lambda _: held)
