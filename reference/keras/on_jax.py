"""What Keras does not do alike on every backend, on JAX: processors, GPUs and TPUs.

See ``backend.Engine``. JAX computes with values, not with variables: a computation gets the values
of all variables and returns those that it has changed, weights, statistics and the state of the
optimizer alike. All devices form one mesh. Each has the variables and its part of a batch, so that
a mean over the batch, such as that of a normalisation, is one over all devices.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import keras
import numpy as np
from jax.extend.backend import clear_backends
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cepheid.reference.keras.pipeline import read_ahead

__all__ = ["read_ahead"]

VERSION = f"jax {jax.__version__}"
WAYS: Mapping[str, str] = {"on": "XLA"}
THREADS_VARIABLE = "NPROC"  # read by XLA when it starts
BATCH = "batch"  # the one axis of the mesh

jax.config.update("jax_default_matmul_precision", "float32")  # fp32 is float32 on TPUs, too


def set_threads(count: int) -> None:
    """Compute on ``count`` threads of the processor; arrays made with another number are lost."""
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


def read_peak_device_bytes() -> int:
    """Return the most bytes that were allocated on the first accelerator at once."""
    return int(jax.local_devices()[0].memory_stats()["peak_bytes_in_use"])


class Program:
    """Computations with the same variables."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = variables
        mesh = Mesh(jax.devices(), (BATCH,))
        self._everywhere = NamedSharding(mesh, PartitionSpec())
        self._divided = NamedSharding(mesh, PartitionSpec(BATCH))

    def trace(self, computation: Callable[..., Any], way: str) -> Callable[..., Any]:
        """Return ``computation``, compiled for each shape of its arrays (batch, …)."""

        def run(values: Sequence[Any], arrays: Sequence[Any]) -> tuple[Any, Mapping[int, Any]]:
            with keras.StatelessScope(zip(self.variables, values, strict=True)) as scope:
                before = [*map(scope.get_current_value, self.variables)]
                result = computation(*arrays)
            return result, self._find_changes(scope, before)

        compiled = jax.jit(
            run, in_shardings=(self._everywhere, None), out_shardings=self._everywhere
        )

        def call(*arrays: Any) -> Any:
            values = [variable.value for variable in self.variables]
            result, changes = compiled(values, [*map(self._place, arrays)])
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

    def _place(self, array: np.ndarray) -> Any:
        """Return an array (batch, …) with a part on each device; one that is uneven on each."""
        is_even = array.ndim and len(array) % jax.device_count() == 0
        return jax.device_put(array, self._divided if is_even else self._everywhere)
