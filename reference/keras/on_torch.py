"""What Keras does not do alike on every backend, on PyTorch, operation by operation.

``--framework torch`` is the faster way; this one runs Keras where nothing else does. Beside these
functions the others have ``join``, ``leave`` and ``gather``, for several processes.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import torch

from cepheid.reference.data.ahead import read_ahead

__all__ = ["read_ahead"]

VERSION = f"torch {torch.__version__}"
WAYS: Mapping[str, str] = {
    "off": "eager"
}  # by the values of ``--set compile``, the usual one first
OPTIONS_OF_NORMS: Mapping[str, Any] = {}  # so that a batch norm spans the batch of all devices


def set_threads(count: int) -> None:
    """Compute on ``count`` threads of the processor."""
    torch.set_num_threads(count)


def count_threads() -> int:
    """Return on how many threads the processor computes."""
    return torch.get_num_threads()


def name_devices() -> list[str]:
    """Return the name of the GPU that Keras uses; none where the processor computes."""
    return [torch.cuda.get_device_name()] if torch.cuda.is_available() else []


def count_devices() -> int:
    """Return 1: Keras uses one device on PyTorch."""
    return 1


def set_seed(seed: int) -> None:
    """Let layers begin with the weights of this seed; Keras' function would load TensorFlow."""
    random.seed(seed)  # layers draw their seeds by it


def read_peak_device_bytes() -> int:
    """Return the most bytes that were allocated on the GPU at once."""
    return int(torch.cuda.max_memory_allocated())


class Program:
    """Computations with the same variables."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = variables

    def trace(
        self, computation: Callable[..., Any], way: str, *, takes_parts: bool = False
    ) -> Callable[..., Any]:
        """Return ``computation`` on arrays."""

        def call(*arrays: Any) -> Any:
            with torch.no_grad():
                return computation(*map(keras.ops.convert_to_tensor, arrays))

        return call

    def differentiate(
        self, compute_loss: Callable[[], Any], trainable: Sequence[Any]
    ) -> tuple[Any, Sequence[Any]]:
        """Return the loss, a scalar, and its gradients, in the shapes of ``trainable``."""
        with torch.enable_grad():
            loss = compute_loss()
        gradients = torch.autograd.grad(loss, [variable.value for variable in trainable])
        return loss.detach(), gradients
