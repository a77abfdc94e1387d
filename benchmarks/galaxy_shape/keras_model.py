"""The shape network of Arcelin 2021 in Keras, as published; ``model.py`` describes it.

Channels last, 'same' padding as Keras has it. ``keras_weights`` converts between the weights of
this network and of ``model.ShapeNetwork``, which is turned by half a turn.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cepheid.reference.keras.backend import engine, keras
from cepheid.reference.keras.task import Tensor

ops, layers = keras.ops, keras.layers
SHARED_AXES = {"position": None, "channel": [1, 2]}  # of the slopes
MINIMUM_SCALE = 1e-5  # added to the softplus of the diagonal, as TensorFlow Probability does


def asinh(values: Tensor) -> Tensor:
    """Return the inverse hyperbolic sine of values of any shape.

    TensorFlow's own computes one value after the other.
    """
    size = ops.abs(values)
    squared = ops.square(size)
    return ops.sign(values) * ops.log1p(size + squared / (1 + ops.sqrt(1 + squared)))


INPUT_SCALINGS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "asinh": lambda images: asinh(images / 3),
    "none": lambda images: images,
}


def make_shape_network(
    *,
    bands: int,
    pixels: int,
    filters: Sequence[int],
    targets: int,
    prelu: str,
    input_scaling: str,
    epsilon: float,
    momentum: float,
    convolution: Callable[..., Any] = layers.Conv2D,
    dense: Callable[..., Any] = layers.Dense,
) -> keras.Model:
    """Return the network from stamps to the entries of the head, (batch, d + d(d + 1)/2), float32.

    Stamps are (batch, bands, pixels, pixels), float16 as stored; ``make_posterior`` takes the
    entries. Layers have the names of their counterparts in ``model.ShapeNetwork``. ``convolution``
    and ``dense`` make the layers that have a kernel.
    """
    stamps = keras.Input((bands, pixels, pixels), dtype="float16")
    images = ops.transpose(ops.cast(stamps, "float32"), (0, 2, 3, 1))
    images = apply_trunk(
        INPUT_SCALINGS[input_scaling](images),
        filters=filters,
        prelu=prelu,
        epsilon=epsilon,
        momentum=momentum,
        convolution=convolution,
    )
    head = dense(targets + targets * (targets + 1) // 2, name="head")
    return keras.Model(stamps, ops.cast(head(layers.Flatten()(images)), "float32"))


def apply_trunk(
    images: Tensor,
    *,
    filters: Sequence[int],
    prelu: str,
    epsilon: float,
    momentum: float,
    convolution: Callable[..., Any] = layers.Conv2D,
    slopes: Callable[..., Any] = layers.PReLU,
) -> Tensor:
    """Apply the normalisation and all blocks to scaled images (batch, pixels, pixels, bands)."""
    norm = layers.BatchNormalization(
        epsilon=epsilon, momentum=momentum, name="norm", **engine.OPTIONS_OF_NORMS
    )
    images = norm(images)
    number = 0
    for width in filters:
        for stride in (1, 2):
            layer = convolution(width, 3, stride, "same", name=f"trunk_{number}")
            activation = slopes(shared_axes=SHARED_AXES[prelu], name=f"trunk_{number + 1}")
            images = activation(layer(images))
            number += 2
    return images


def make_posterior(head: Tensor, targets: int) -> tuple[Tensor, Tensor]:
    """Return means (batch, d) and scale matrices (batch, d, d), lower triangular.

    ``head`` holds d means, then the matrix row by row; its diagonal passes through softplus.
    """
    mean, entries = head[:, :targets], head[:, targets:]
    rows, position = [], 0
    zero = ops.zeros_like(entries[:, 0])
    for row in range(targets):
        below = [entries[:, position + column] for column in range(row)]
        diagonal = ops.softplus(entries[:, position + row]) + MINIMUM_SCALE
        rows.append(ops.stack([*below, diagonal, *[zero] * (targets - row - 1)], axis=1))
        position += row + 1
    return mean, ops.stack(rows, axis=1)


def negative_log_likelihood(mean: Tensor, scale: Tensor, labels: Tensor) -> Tensor:
    """Return −log N(labels; mean, L·Lᵀ) per sample in nats, (batch,).

    ``mean`` and ``labels`` are (batch, d), ``scale`` is (batch, d, d). Source: Arcelin 2021,
    equation 1.
    """
    targets = labels.shape[1]
    log_determinant = sum(ops.log(scale[:, row, row]) for row in range(targets))
    squares = ops.sum(ops.square(whiten(mean, scale, labels)), axis=1)
    return 0.5 * squares + log_determinant + 0.5 * targets * math.log(2 * math.pi)


def whiten(mean: Tensor, scale: Tensor, labels: Tensor) -> Tensor:
    """Return L⁻¹(labels − mean), (batch, d), by forward substitution."""
    residual = labels - mean
    white: list[Tensor] = []
    for row in range(residual.shape[1]):
        known = sum(scale[:, row, column] * white[column] for column in range(row))
        white.append((residual[:, row] - known) / scale[:, row, row])
    return ops.stack(white, axis=1)
