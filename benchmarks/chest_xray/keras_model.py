"""ResNet-50 v1.5 in Keras, channels last, and its weights from those of PyTorch.

Layers have the names of their counterparts in ``resnet50.model``, with underscores for dots.
"""

from collections.abc import Mapping

import numpy as np

from cepheid.reference.keras.backend import keras
from cepheid.reference.keras.task import Tensor

layers, ops = keras.layers, keras.ops
BLOCKS, EXPANSION = (3, 4, 6, 3), 4
LAST = "fc"
LAST_DEVIATION = 0.01
KINDS = {
    "kernel": "weight",
    "gamma": "weight",
    "bias": "bias",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}


def make_resnet(
    *, pixels: int, outputs: int, width: int, epsilon: float, momentum: float
) -> keras.Model:
    """Return the network from images (n, pixels, pixels, 3) to logits (n, outputs), float32.

    ``momentum`` is the share of the newest statistics, as in PyTorch.
    """
    images = keras.Input((pixels, pixels, 3))

    def normalise(name: str, features: Tensor) -> Tensor:
        layer = layers.BatchNormalization(epsilon=epsilon, momentum=1 - momentum, name=name)
        return layer(features)

    features = ops.relu(normalise("bn1", convolve("conv1", images, width, 7, 2)))
    features = layers.MaxPooling2D(3, 2)(layers.ZeroPadding2D(1)(features))  # none is below 0
    for stage, count in enumerate(BLOCKS):
        inner = width * 2**stage
        for unit in range(count):
            name, stride = f"layer{stage + 1}_{unit}", 2 if unit == 0 and stage > 0 else 1
            kept = features
            if unit == 0:
                kept = convolve(f"{name}_downsample_0", kept, inner * EXPANSION, 1, stride)
                kept = normalise(f"{name}_downsample_1", kept)
            for number, (channels, side) in enumerate(
                ((inner, 1), (inner, 3), (inner * EXPANSION, 1)), start=1
            ):
                steps = stride if side == 3 else 1
                features = convolve(f"{name}_conv{number}", features, channels, side, steps)
                features = normalise(f"{name}_bn{number}", features)
                features = ops.relu(features if number < 3 else features + kept)
    means = ops.mean(ops.cast(features, "float32"), axis=(1, 2))
    initial = keras.initializers.RandomNormal(stddev=LAST_DEVIATION)
    logits = layers.Dense(outputs, kernel_initializer=initial, name=LAST)(means)
    return keras.Model(images, ops.cast(logits, "float32"))


def convolve(name: str, features: Tensor, channels: int, side: int, stride: int) -> Tensor:
    """Map (n, y, x, c) to (n, y, x, channels), strided, and padded evenly as PyTorch does."""
    if side > 1:
        features = layers.ZeroPadding2D(side // 2)(features)
    layer = layers.Conv2D(channels, side, stride, use_bias=False, name=name)
    return layer(features)


def assign_weights(network: keras.Model, state: Mapping[str, np.ndarray]) -> None:
    """Give the network the weights of a state dict, which have their shapes in PyTorch.

    The state may lack the last layer.
    """
    for variable in network.variables:
        layer, kind = variable.path.split("/")
        name = f"{layer.replace('_', '.')}.{KINDS[kind]}"
        if layer == LAST and name not in state:
            continue
        value = state[name]
        if kind == "kernel":
            value = value.transpose(2, 3, 1, 0) if value.ndim == 4 else value.T
        variable.assign(value)
