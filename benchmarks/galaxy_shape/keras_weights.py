"""Convert the weights of the shape network between PyTorch and Keras.

Keras has kernels as (y, x, in, out) and flattens images as (y, x, channel). The network in PyTorch
is turned by half a turn (see ``model.py``), so kernels, slopes and head are turned too: what
one network finds in a stamp, the other finds in ``stamp[:, ::-1, ::-1]``. Plain arrays; needs no
framework.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np

Weights = dict[str, np.ndarray]
NORM = {
    "weight": "gamma",
    "bias": "beta",
    "running_mean": "moving_mean",
    "running_variance": "moving_variance",
}


def convert_to_keras(state: Mapping[str, np.ndarray]) -> Weights:
    """Return Keras' weights by path, e.g. ``trunk_0/kernel``, from a state dict.

    ``state`` is that of a ``ShapeNetwork``, e.g. ``trunk.0.convolution.weight``; the input
    normalisation is part of the first layer. Kernels (out, in, y, x) become (y, x, in, out) and
    matrices (out, in) become (in, out); the others keep their shapes.
    """
    weights: Weights = {}
    # The images before the head are square, with as many channels as the last slopes.
    channels = [value.shape[2] for value in state.values() if value.ndim == 3][-1]
    side = math.isqrt(state["head.weight"].shape[1] // channels)
    for name, value in state.items():
        layer, kind = name.replace("trunk.", "trunk_").replace("convolution.", "").split(".", 1)
        if kind.startswith("norm."):
            weights[f"norm/{NORM[kind.removeprefix('norm.')]}"] = value
        elif kind == "slope":
            weights[f"{layer}/alpha"] = value[::-1, ::-1]
        elif kind == "bias":
            weights[f"{layer}/bias"] = value
        elif layer == "head":
            images = value.reshape(len(value), -1, side, side)[:, :, ::-1, ::-1]
            weights["head/kernel"] = images.transpose(2, 3, 1, 0).reshape(-1, len(value))
        else:
            weights[f"{layer}/kernel"] = value[:, :, ::-1, ::-1].transpose(2, 3, 1, 0)
    return {path: np.ascontiguousarray(value) for path, value in weights.items()}


def convert_to_torch(
    weights: Mapping[str, np.ndarray],
    like: Mapping[str, np.ndarray],
    convert: Callable[[Weights], Weights] = convert_to_keras,
) -> Weights:
    """Return the state dict that ``convert`` turns into ``weights``, in the shapes of PyTorch.

    ``like`` is a state dict of the network, whose values do not count. Each value of a state goes
    to one place, so the numbers of all values, converted, say where each one is.
    """
    numbers: Weights = {}
    for name, value in like.items():
        first = sum(each.size for each in numbers.values())
        numbers[name] = np.arange(first, first + value.size).reshape(value.shape)
    values = np.empty(sum(each.size for each in numbers.values()), np.float32)
    for path, places in convert(numbers).items():
        values[places] = weights[path]
    return {name: values[places] for name, places in numbers.items()}
