"""The Bayesian network of Arcelin 2021 in Keras; ``model.py`` describes it."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from cepheid.benchmarks.galaxy_shape import keras_weights
from cepheid.benchmarks.galaxy_shape.keras_weights import Weights
from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.keras.backend import engine, keras
from cepheid.reference.keras.task import Tensor

ops = keras.ops


class GaussianKernel(keras.layers.Layer):  # type: ignore[misc]
    """A layer whose kernel is one draw from its posterior, μ + softplus(s)·ε.

    The mean μ is the layer's own ``kernel`` variable; ``untransformed_scale`` (s) and ``noise`` (ε,
    standard normal when it is drawn, 0 before) have its shape.
    """

    def __init__(self, *args: Any, initial_relative_scale: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self.initial_relative_scale = initial_relative_scale

    def build(self, input_shape: Any) -> None:
        """Build the layer with standard deviations as in ``model.make_bayesian``."""
        super().build(input_shape)
        self.mean = super().kernel
        scale = self.initial_relative_scale * math.sqrt(2 / math.prod(self.mean.shape[:-1]))
        self.untransformed_scale = self.add_weight(
            name="untransformed_scale",
            shape=self.mean.shape,
            initializer=keras.initializers.Constant(math.log(math.expm1(scale))),
        )
        # Not by assignment, which would make it a weight of the network, and of its checkpoints.
        self.__dict__["noise"] = keras.Variable(
            np.zeros(self.mean.shape, np.float32), trainable=False, autocast=False
        )

    def add_weight(self, *args: Any, name: str, **options: Any) -> Any:
        """Add a weight; mean and scale stay in float32 until the weight is drawn."""
        return super().add_weight(*args, name=name, autocast=name == "bias", **options)

    @property
    def scale(self) -> Tensor:
        """σ, the standard deviation of each weight's posterior, in the shape of the mean."""
        return ops.softplus(self.untransformed_scale)

    @property
    def kernel(self) -> Tensor:
        """The weight for the current ``noise``, in the shape of the mean."""
        return ops.cast(self.mean + ops.multiply(self.scale, self.noise), self.compute_dtype)


class GaussianConv2D(GaussianKernel, keras.layers.Conv2D):  # type: ignore[misc]
    """A convolution with a Gaussian kernel and a deterministic bias."""


class GaussianDense(GaussianKernel, keras.layers.Dense):  # type: ignore[misc]
    """A dense layer with a Gaussian kernel and a deterministic bias."""


def list_gaussian_layers(network: keras.Model) -> Iterator[GaussianKernel]:
    """Return the Gaussian layers, in the order of the network."""
    return (layer for layer in network.layers if isinstance(layer, GaussianKernel))


def list_noise(network: keras.Model) -> list[Any]:
    """Return the noise of all Gaussian weights, in the shapes of their means."""
    return [layer.noise for layer in list_gaussian_layers(network)]


def kl_divergence(network: keras.Model, prior_scale: float) -> Tensor:
    """Return KL(posterior ‖ N(0, prior_scale²)) of all Gaussian weights, a scalar in nats."""
    terms = []
    for layer in list_gaussian_layers(network):
        mean, scale = layer.mean / prior_scale, layer.scale / prior_scale
        terms.append(ops.sum(0.5 * (ops.square(mean) + ops.square(scale) - 1) - ops.log(scale)))
    return ops.sum(ops.stack(terms))


class WeightNoise:
    """The noise of all Gaussian weights; the same (seed, purpose, keys) draw the same weights."""

    def __init__(self, network: keras.Model) -> None:
        self.parts = list_noise(network)
        self._random = keras.random.SeedGenerator(0)
        program = engine.Program([*self.parts, self._random.state])
        self._fill = program.trace(self._fill_noise, next(iter(engine.WAYS)))

    def draw(self, seed: int, purpose: str, *keys: int) -> None:
        """Draw all weights at once."""
        drawn = make_generator(seed, purpose, *keys).integers(2**31, size=2)
        self._random.state.assign(drawn)
        self._fill()

    def _fill_noise(self) -> None:
        sizes = [math.prod(part.shape) for part in self.parts]
        values = keras.random.normal([sum(sizes)], seed=self._random)
        bounds = np.cumsum(sizes)[:-1].tolist()
        for part, drawn in zip(self.parts, ops.split(values, bounds), strict=True):
            part.assign(ops.reshape(drawn, part.shape))


MEAN, SCALE = "parametrizations.weight.original", "parametrizations.weight.0.untransformed_scale"
KERNEL, KERNEL_SCALE = "kernel", "untransformed_scale"


def convert_to_keras(state: Mapping[str, np.ndarray]) -> Weights:
    """Return Keras' weights by path, from a state dict of a Bayesian ``ShapeNetwork``.

    Shapes are those of ``galaxy_shape.keras_weights``; a scale has that of its mean.
    """
    means = {name.replace(MEAN, "weight"): state[name] for name in state if SCALE not in name}
    scales = {name.replace(SCALE, "weight"): state[name] for name in state if SCALE in name}
    weights = keras_weights.convert_to_keras(means)
    for path, value in keras_weights.convert_to_keras({**means, **scales}).items():
        if path.endswith(KERNEL):
            weights[path.replace(KERNEL, KERNEL_SCALE)] = value
    return weights
