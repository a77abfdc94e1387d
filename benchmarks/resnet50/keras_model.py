"""ResNet-50 v1.5 in Keras, channels last, and its weights from those of PyTorch.

Layers have the names of their counterparts in ``resnet50.model``, with underscores for dots.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cepheid.reference.keras.backend import engine, keras
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

    def normalise(name: str, features: Tensor, first: str = "ones") -> Tensor:
        layer = layers.BatchNormalization(
            epsilon=epsilon,
            momentum=1 - momentum,
            gamma_initializer=first,
            name=name,
            **engine.OPTIONS_OF_NORMS,
        )
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
                # Each block begins as its shortcut (Goyal et al. 2017, section 5.1).
                first = "zeros" if number == 3 else "ones"
                features = normalise(f"{name}_bn{number}", features, first)
                features = ops.relu(features if number < 3 else features + kept)
    means = ops.mean(ops.cast(features, "float32"), axis=(1, 2))
    initial = keras.initializers.RandomNormal(stddev=LAST_DEVIATION)
    logits = layers.Dense(outputs, kernel_initializer=initial, name=LAST)(means)
    return keras.Model(images, ops.cast(logits, "float32"))


def convolve(name: str, features: Tensor, channels: int, side: int, stride: int) -> Tensor:
    """Map (n, y, x, c) to (n, y, x, channels), strided, and padded evenly as PyTorch does."""
    if side > 1:
        features = layers.ZeroPadding2D(side // 2)(features)
    initial = keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")
    layer = layers.Conv2D(
        channels, side, stride, use_bias=False, kernel_initializer=initial, name=name
    )
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


class Lars(keras.optimizers.Optimizer):  # type: ignore[misc]
    """``reference.optim.lars.Lars`` with scaled momentum; plain SGD without ``trust``.

    Tensors of one dimension are neither decayed nor adapted.
    """

    def __init__(
        self, rate: float, *, momentum: float, decay: float, trust: float | None, epsilon: float
    ) -> None:
        super().__init__(rate, name="lars")
        self.momentum, self.decay, self.trust, self.small = momentum, decay, trust, epsilon

    def build(self, variables: Sequence[Any]) -> None:
        """Make a velocity for each variable, of its shape."""
        super().build(variables)
        self.velocities = [
            self.add_variable_from_reference(variable, name="velocity") for variable in variables
        ]

    def update_step(self, gradient: Tensor, variable: Any, learning_rate: Tensor) -> None:
        """Update a variable by its gradient, of any shape."""
        velocity = self.velocities[self._get_variable_index(variable)]
        weight = ops.convert_to_tensor(variable)
        rate = ops.cast(learning_rate, "float32")
        if len(variable.shape) > 1:
            if self.trust is not None:
                norms = [ops.sqrt(ops.sum(ops.square(each))) for each in (weight, gradient)]
                decayed = norms[1] + self.decay * norms[0] + self.small
                is_defined = ops.logical_and(norms[0] > 0, norms[1] > 0)
                rate = rate * ops.where(is_defined, self.trust * norms[0] / decayed, 1.0)
            gradient = gradient + self.decay * weight
        moved = self.momentum * ops.convert_to_tensor(velocity) + gradient
        self.assign(velocity, moved)
        self.assign_sub(variable, rate * moved)
