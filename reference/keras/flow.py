"""The masked autoregressive flow in Keras; see ``cepheid.reference.torch.flow.autoregressive``."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from cepheid.reference.keras.backend import keras
from cepheid.reference.keras.task import Tensor

ops, layers = keras.ops, keras.layers
NEGATIVE_SLOPE = 0.2


class MaskedDense(layers.Dense):  # type: ignore[misc,name-defined]
    """A dense layer whose output of degree d sees the inputs of degree ≤ d (or < d: ``strict``)."""

    def __init__(
        self, inputs: np.ndarray, outputs: np.ndarray, *, strict: bool = False, **options: Any
    ) -> None:
        seen = inputs[:, None] < outputs if strict else inputs[:, None] <= outputs
        self.mask = seen.astype(np.float32)
        super().__init__(len(outputs), kernel_initializer=self._initial, **options)

    def _initial(self, shape: Sequence[int], dtype: str | None = None) -> Tensor:
        return ops.multiply(keras.initializers.GlorotUniform()(shape, dtype), self.mask)

    @property
    def kernel(self) -> Tensor:
        """The kernel, (inputs, outputs), 0 where an output must not see an input."""
        return ops.multiply(super().kernel, self.mask)


class Flow:
    """A flow from N(0, 1) through masked networks; see ``MaskedAutoregressiveFlow``."""

    def __init__(self, features: int, count: int, hidden_units: Sequence[int]) -> None:
        self.networks = [
            _make_made(f"flow.layers.{number}", features, hidden_units) for number in range(count)
        ]
        self.features = features

    def log_prob(self, latents: Tensor) -> Tensor:
        """Return the log density in nats, (batch,), of (batch, features), in one pass."""
        values, log_determinant = latents, 0.0
        for number, network in enumerate(self.networks):
            if number:
                values = ops.flip(values, axis=1)
            shift, log_scale = _split_shift_and_scale(network(values))
            values = (values - shift) * ops.exp(-log_scale)
            log_determinant -= ops.sum(log_scale, axis=1)
        normal = -0.5 * ops.sum(ops.square(values) + math.log(2 * math.pi), axis=1)
        return normal + log_determinant

    def sample(self, noise: Tensor) -> Tensor:
        """Map noise (batch, features) to latents of the same shape, the plain way.

        It passes through each layer as many times as there are features; each pass determines one
        more.
        """
        values = noise
        for number, network in enumerate(reversed(self.networks)):
            if number:
                values = ops.flip(values, axis=1)
            values = self._invert(network, values)
        return values

    def _invert(self, network: Any, given: Tensor) -> Tensor:
        """Return the values (batch, features) that ``network`` maps to ``given``."""

        def pass_once(_: Tensor, values: Tensor) -> Tensor:
            shift, log_scale = _split_shift_and_scale(network(values))
            return given * ops.exp(log_scale) + shift

        return ops.fori_loop(0, self.features, pass_once, ops.zeros_like(given))


def _split_shift_and_scale(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Split the output (batch, 2 · features) into shift and log scale, (batch, features)."""
    return outputs[:, 0::2], outputs[:, 1::2]


def _make_made(name: str, features: int, hidden_units: Sequence[int]) -> keras.Model:
    """Return a network for shift and log scale of each feature; see ``MADE``.

    The last layer starts at 0, so that values pass unchanged.
    """
    order = np.arange(1, features + 1)
    degrees = [order, *(_equal_degrees(features, units) for units in hidden_units)]
    inputs = values = keras.Input((features,))
    for number, (before, after) in enumerate(pairwise(degrees)):
        hidden = MaskedDense(before, after, name=f"{name}.hidden.{number}")
        values = ops.leaky_relu(hidden(values), NEGATIVE_SLOPE)
    output = MaskedDense(degrees[-1], order.repeat(2), strict=True, name=f"{name}.output")
    network = keras.Model(inputs, ops.leaky_relu(output(values), NEGATIVE_SLOPE))
    output.set_weights([np.zeros_like(weight) for weight in output.get_weights()])
    return network


def _equal_degrees(features: int, units: int) -> np.ndarray:
    """Return hidden degrees from 1 to features − 1, equally spread, rising (TFP's ``equal``)."""
    steps = np.arange(1, units + 1)
    return np.ceil(steps * (features - 1) / (units + 1)).astype(int).clip(min=1)
