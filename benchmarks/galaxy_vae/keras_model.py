"""Autoencoder and flow of Arcelin 2021 in Keras, as ``model.py`` describes them.

Channels last, 'same' padding as Keras has it; weights can be converted between these networks and
``model.GalaxyVae``, which are turned by half a turn. Layers are called as their counterparts there,
those of the encoder's trunk as in galaxy_shape: it and the dense layer behind it are galaxy_shape's
trunk and head. In the decoder images are turned from the second dense layer on. The flow knows
latents only.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from cepheid.benchmarks.galaxy_shape import keras_weights
from cepheid.benchmarks.galaxy_shape.keras_model import SHARED_AXES, apply_trunk
from cepheid.benchmarks.galaxy_shape.keras_weights import Weights
from cepheid.benchmarks.galaxy_vae.framework_free import (
    DENSE_UNITS,
    FIRST_LOGIT,
    FIRST_SCALE,
    FIRST_SLOPE,
    LARGEST_LOGIT,
    MINIMUM_SCALE,
    OVERFLOW,
    Sizes,
    find_flux_scales,
)
from cepheid.reference.keras.backend import keras
from cepheid.reference.keras.flow import Flow
from cepheid.reference.keras.task import Tensor

ops, layers = keras.ops, keras.layers
TRUNK, DENSE = "encoder.trunk.", "encoder.dense"
FIRST_IMAGES = ("decoder.dense_2", "decoder.slope_2")  # their outputs are images, flattened
KINDS = {"weight": "kernel", "bias": "bias", "slope": "alpha"}

make_constant = keras.initializers.Constant
# Layers that start as ``model.keep_variance`` has them.
Dense = partial(layers.Dense, kernel_initializer="he_uniform")
Conv2D = partial(layers.Conv2D, kernel_initializer="he_uniform")
PReLU = partial(layers.PReLU, alpha_initializer=make_constant(FIRST_SLOPE))


def make_doubling_layer(width: int, inputs: int, name: str) -> Any:
    """Return a transposed convolution of stride 2; a pixel sees a quarter of its ``inputs``."""
    bound = math.sqrt(6 / (9 * inputs // 4))
    uniform = keras.initializers.RandomUniform(-bound, bound)
    return layers.Conv2DTranspose(width, 3, 2, "same", kernel_initializer=uniform, name=name)


@dataclass(frozen=True)
class FluxScaling:
    """The scaling of images, (…, y, x, bands), between sky noise and the networks."""

    scales: np.ndarray  # (bands,)

    def scale(self, images: Tensor) -> Tensor:
        """Scale images (…, y, x, bands) in units of the sky noise to (−1, 1)."""
        values = ops.divide(images, self.scales)
        return values * ops.rsqrt(1 + ops.square(values))

    def inverse(self, logits: Tensor) -> Tensor:
        """Return the images whose scaled values are sigmoid(logits), (…, y, x, bands)."""
        logits = ops.minimum(logits, LARGEST_LOGIT)
        share = ops.sigmoid(logits)
        return ops.multiply(share * ops.rsqrt(ops.sigmoid(-logits) * (1 + share)), self.scales)


class GalaxyVae:
    """Encoder, decoder and flow, as in ``model.GalaxyVae``."""

    def __init__(self, sizes: Sizes) -> None:
        self.flux_scaling = FluxScaling(find_flux_scales(sizes.mean_maxima))
        scaled = keras.Input((sizes.pixels, sizes.pixels, sizes.bands))
        images = apply_trunk(
            scaled,
            filters=sizes.filters,
            prelu=sizes.prelu,
            **sizes.norm_options,
            convolution=Conv2D,
            slopes=PReLU,
        )
        features = _make_dense_layer(
            layers.Flatten()(images), DENSE_UNITS, "encoder.dense", "encoder.slope"
        )
        small = make_constant(FIRST_SCALE)
        to_mean = layers.Dense(sizes.latents, name="encoder.mean")
        to_scale = layers.Dense(sizes.latents, bias_initializer=small, name="encoder.scale")
        mean, scale = (ops.cast(layer(features), "float32") for layer in (to_mean, to_scale))
        self.encoder = keras.Model(scaled, [mean, ops.softplus(scale) + MINIMUM_SCALE])
        self.decoder = make_decoder(sizes)
        self.flow = Flow(sizes.latents, sizes.flow_layers, sizes.flow_hidden)
        self.networks = [self.encoder, self.decoder, *self.flow.networks]

    def scale_images(self, images: Tensor) -> Tensor:
        """Scale images (batch, bands, pixels, pixels) to (batch, pixels, pixels, bands)."""
        return self.flux_scaling.scale(ops.transpose(ops.cast(images, "float32"), (0, 2, 3, 1)))

    def make_images(self, latents: Tensor) -> Tensor:
        """Return images in units of the sky noise, (batch, bands, y, x), of (batch, latents)."""
        logits = self.decoder(latents, training=False)
        return ops.transpose(self.flux_scaling.inverse(logits), (0, 3, 1, 2))

    @property
    def layers(self) -> list[Any]:
        """The layers of encoder, decoder and flow."""
        return [layer for network in self.networks for layer in network.layers]

    @property
    def variables(self) -> list[Any]:
        """The variables of encoder, decoder and flow."""
        return [variable for network in self.networks for variable in network.variables]

    @property
    def trainable_variables(self) -> list[Any]:
        """The trainable variables of encoder, decoder and flow."""
        return [variable for variable in self.variables if variable.trainable]


def make_decoder(sizes: Sizes) -> keras.Model:
    """Return the network from latents (batch, latents) to logits (batch, y, x, bands)."""
    side, channels = sizes.least_side, sizes.filters[-1]
    inputs = keras.Input((sizes.latents,))
    features = _make_dense_layer(inputs, DENSE_UNITS, "decoder.dense_1", "decoder.slope_1")
    features = _make_dense_layer(features, channels * side**2, "decoder.dense_2", "decoder.slope_2")
    images, number = ops.reshape(features, (-1, side, side, channels)), 0
    for width in reversed(sizes.filters):
        for layer in (
            make_doubling_layer(width, channels, f"decoder.blocks.{number}"),
            Conv2D(width, 3, 1, "same", name=f"decoder.blocks.{number + 2}"),
        ):
            slopes = PReLU(
                shared_axes=SHARED_AXES[sizes.prelu], name=f"decoder.blocks.{number + 1}"
            )
            images = slopes(layer(images))
            number += 2
        channels = width
    name, dark = f"decoder.blocks.{number}", make_constant(FIRST_LOGIT)
    last = Conv2D(sizes.bands, 3, 1, "same", bias_initializer=dark, name=name)
    return keras.Model(inputs, ops.cast(last(images), "float32"))


def _make_dense_layer(values: Tensor, units: int, name: str, slopes: str) -> Tensor:
    return PReLU(name=slopes)(Dense(units, name=name)(values))


def cut_off_overflow(values: Tensor) -> Tensor:
    """Return finite ``values`` in the same shape; a flow far from its latents overflows."""
    return ops.clip(ops.where(ops.isnan(values), OVERFLOW, values), -OVERFLOW, OVERFLOW)


def reconstruction_loss(logits: Tensor, scaled: Tensor) -> Tensor:
    """Return the binary cross-entropy of scaled images and logits in nats, (batch,).

    It is the sum over bands and pixels.
    """
    entropies = ops.binary_crossentropy(scaled, logits, from_logits=True)
    return ops.sum(entropies, axis=(1, 2, 3))


def kl_divergence(mean: Tensor, scale: Tensor) -> Tensor:
    """Return KL(N(mean, scale²) ‖ N(0, 1)) in nats, (batch,), of (batch, latents) each."""
    return 0.5 * ops.sum(ops.square(mean) + ops.square(scale) - 1 - 2 * ops.log(scale), axis=1)


def convert_to_keras(state: Mapping[str, np.ndarray]) -> Weights:
    """Return Keras' weights by path, e.g. ``decoder.blocks.0/kernel``, from a state dict.

    Kernels (a, b, y, x) become (y, x, b, a) and matrices (a, b) become (b, a); the others keep
    their shapes.
    """
    shape, weights = {}, {}
    channels = state["decoder.blocks.0.weight"].shape[0]
    for name, value in state.items():
        if name.startswith((TRUNK, DENSE)):
            shape[name.replace(TRUNK, "trunk.").replace(DENSE, "head")] = value
            continue
        layer, _, kind = name.rpartition(".")
        if kind.startswith("slope_") or name == "encoder.slope":
            layer, kind = name, "slope"
        if layer in FIRST_IMAGES:
            value = _rotate_rows(value, channels)
        if value.ndim == 4:
            value = value[:, :, ::-1, ::-1].transpose(2, 3, 1, 0)
        elif kind == "weight":
            value = value.T
        elif value.ndim == 3:
            value = value[::-1, ::-1]
        weights[f"{layer}/{KINDS[kind]}"] = np.ascontiguousarray(value)
    # Weights of decoder and flow alone have no trunk.
    for path, value in keras_weights.convert_to_keras(shape).items() if shape else ():
        weights[path.replace("head/", f"{DENSE}/")] = value
    return weights


def _rotate_rows(values: np.ndarray, channels: int) -> np.ndarray:
    """Return rows (y·x·channels, …) of an image that is rotated by half a turn."""
    side = math.isqrt(len(values) // channels)
    images = values.reshape(side, side, channels, *values.shape[1:])
    return images[::-1, ::-1].reshape(values.shape)
