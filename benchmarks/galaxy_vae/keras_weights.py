"""Convert the weights of ``GalaxyVae`` between PyTorch and Keras, as plain arrays.

See also ``galaxy_shape.keras_weights``.

The trunk of the encoder and the dense layer behind it are galaxy_shape's trunk and head. In the
decoder images are turned from the second dense layer on. The flow knows latents only.
"""

import math
from collections.abc import Mapping

import numpy as np

from cepheid.benchmarks.galaxy_shape import keras_weights
from cepheid.benchmarks.galaxy_shape.keras_weights import Weights

TRUNK, DENSE = "encoder.trunk.", "encoder.dense"
FIRST_IMAGES = ("decoder.dense_2", "decoder.slope_2")  # their outputs are images, flattened
KINDS = {"weight": "kernel", "bias": "bias", "slope": "alpha"}


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


def convert_to_torch(weights: Mapping[str, np.ndarray]) -> Weights:
    """Return the state dict for weights of ``convert_to_keras``, in the shapes of PyTorch."""
    shape, state = {}, {}
    channels = weights["decoder.blocks.0/kernel"].shape[3]
    kinds = {theirs: ours for ours, theirs in KINDS.items()}
    for path, value in weights.items():
        layer, kind = path.split("/")
        if layer == DENSE or "." not in layer:
            shape[path.replace(DENSE, "head")] = value
            continue
        if value.ndim == 4:
            value = value[::-1, ::-1].transpose(3, 2, 0, 1)
        elif kind == "kernel":
            value = value.T
        elif value.ndim == 3:
            value = value[::-1, ::-1]
        if layer in FIRST_IMAGES:
            value = _rotate_rows(value, channels)
        name = layer if layer.split(".")[1].startswith("slope") else f"{layer}.{kinds[kind]}"
        state[name] = np.ascontiguousarray(value)
    for name, value in keras_weights.convert_to_torch(shape).items():
        state[name.replace("trunk.", TRUNK).replace("head.", f"{DENSE}.")] = value
    return state


def _rotate_rows(values: np.ndarray, channels: int) -> np.ndarray:
    """Return rows (y·x·channels, …) of an image that is rotated by half a turn."""
    side = math.isqrt(len(values) // channels)
    images = values.reshape(side, side, channels, *values.shape[1:])
    return images[::-1, ::-1].reshape(values.shape)
