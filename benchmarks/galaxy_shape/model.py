"""The shape network of Arcelin 2021 (section 3.2.1): from a stamp to a normal over (e1, e2).

The numerics follow the published Keras model, so that both can agree: 'same' padding at stride 2
pads one side only, batch normalisation has epsilon 1e-3 and keeps 0.99 of its running statistics,
PReLU has one slope per position and channel and starts at 0, kernels start Glorot-uniform and
biases at 0. (With PyTorch's default initialisation this network stays at the prior for many
epochs.)

Rotation by half a turn
    At stride 2 Keras pads below and on the right, which PyTorch can do only by copying the image.
    ``padding=1`` effectively pads above and on the left, as Keras does to an image that is rotated
    by half a turn. So this is the published network with every kernel and every map of slopes
    rotated. A rotated galaxy has the same (e1, e2) and is equally likely, so that nothing else
    changes. ``plain.py`` has the network as published, and shows how the two correspond.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import convert_conv2d_weight_memory_format

from cepheid.reference.galaxies.shapes import RADIUS_SQUARED
from cepheid.reference.torch.devices.values import widen


def asinh(values: Tensor) -> Tensor:
    """Return the inverse hyperbolic sine of ``values`` below 1e19, in the same shape.

    It uses vector instructions; torch's own is ten times slower on CPUs.
    """
    size = values.abs()
    squared = size.square()
    return torch.log1p(size + squared / (1 + torch.sqrt(1 + squared))).copysign(values)


# Pixels are in units of the sky noise. The published network takes them as they are; asinh keeps
# the noise linear and compresses the few bright galaxies that would otherwise dominate the batch
# statistics.
INPUT_SCALINGS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "asinh": lambda images: asinh(images / 3),
    "none": lambda images: images,
}
MINIMUM_SCALE = 1e-5  # added to the softplus of the diagonal, as TensorFlow Probability does


class SamePaddedConv2d(nn.Conv2d):
    """A 3×3 convolution with Keras' 'same' padding, rotated: at stride 2 above and on the left.

    At stride 2 the sides of an image must be even.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__(in_channels, out_channels, 3, stride, padding=1)
        nn.init.xavier_uniform_(self.weight)
        assert self.bias is not None
        nn.init.zeros_(self.bias)


class PReLU(nn.Module):
    """max(x, 0) + slope · min(x, 0) with one slope per position and channel, or per channel.

    ``slope`` is (pixels, pixels, channels) or (1, 1, channels): Keras' order and that of the
    activations in memory. In another order its gradient takes longer than the convolutions.
    """

    def __init__(self, channels: int, pixels: int, per: str) -> None:
        super().__init__()
        sides = {"position": pixels, "channel": 1}[per]
        self.slope = nn.Parameter(torch.zeros(sides, sides, channels))

    def forward(self, images: Tensor) -> Tensor:
        """Return the activations of ``images``, (batch, channels, y, x), in their type."""
        slope = self.slope.permute(2, 0, 1)
        # Two relu, because the gradient of clamp(max=0) is slow in eager execution.
        return (F.relu(images) - slope * F.relu(-images)).to(images.dtype)


class NormalisedConv2d(nn.Module):
    """Batch normalisation and a 'same' convolution of stride 1 in one: ``convolution(norm(x))``.

    The norm (``workload.Inputs``) multiplies and shifts each channel. Here the kernel is multiplied
    instead, and the shift is one more channel of ones, which ends, like the images, where the
    padding begins. So the images need no gradient and are read and written once.
    """

    def __init__(self, norm: nn.Module, convolution: SamePaddedConv2d) -> None:
        super().__init__()
        self.norm: Any = norm
        self.convolution = convolution

    def forward(self, images: Tensor) -> Tensor:
        """Map images (batch, in, height, width) to (batch, out, height, width)."""
        scale, shift = self.norm.scale_and_shift(images)
        kernel = self.convolution.weight
        shifting = (kernel * shift[:, None, None]).sum(1, keepdim=True)
        kernel = torch.cat([kernel * scale[:, None, None], shifting], dim=1)
        images = torch.cat([images, torch.ones_like(images[:, :1])], dim=1)
        return F.conv2d(images, kernel, self.convolution.bias, padding=1)


class ShapeNetwork(nn.Module):
    """Batch normalisation, blocks of two convolutions (the second of stride 2), one dense head.

    The head holds, for d targets, d means and the d(d + 1)/2 entries of the lower-triangular
    scale matrix L, row by row; the diagonal passes through softplus. The covariance is L·Lᵀ.
    ``make_norm`` makes the normalisation of a number of channels.
    """

    def __init__(
        self,
        *,
        bands: int,
        pixels: int,
        filters: Sequence[int],
        targets: int,
        prelu: str,
        input_scaling: str,
        make_norm: Callable[[int], nn.Module],
    ) -> None:
        super().__init__()
        self.targets = targets
        self.scale_input = INPUT_SCALINGS[input_scaling]
        norm = make_norm(bands)
        layers: list[nn.Module] = []
        channels = bands
        for width in filters:
            convolution = SamePaddedConv2d(channels, width, 1)
            layers += [convolution if layers else NormalisedConv2d(norm, convolution)]
            layers += [PReLU(width, pixels, prelu)]
            pixels //= 2
            layers += [SamePaddedConv2d(width, width, 2), PReLU(width, pixels, prelu)]
            channels = width
        self.trunk = nn.Sequential(*layers)
        outputs = targets + targets * (targets + 1) // 2
        self.head = nn.Linear(channels * pixels * pixels, outputs)
        # Some first posteriors are so narrow that the likelihood starts at 1e5 nats and more, which
        # the clipped gradient tolerates. A head of zeros stays at the prior for longer.
        nn.init.xavier_uniform_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return means (batch, d) and scale matrices (batch, d, d) of the shapes, in float32.

        ``images`` are (batch, bands, pixels, pixels) in units of the sky noise.
        """
        features = self.trunk(self.scale_input(images.float())).flatten(1)
        head = self.head(features).float()
        mean, entries = head[:, : self.targets], head[:, self.targets :]
        return mean, make_lower_triangular(entries, self.targets)


def make_channels_last_network(**options: Any) -> ShapeNetwork:
    """Return the network with weights that are channels last in memory; the values are the same.

    Convolutions on CPUs and tensor cores are faster with it.
    """
    network = ShapeNetwork(**options)
    convert_conv2d_weight_memory_format(network, torch.channels_last)
    return network


def make_lower_triangular(entries: Tensor, size: int) -> Tensor:
    """Return matrices (batch, size, size) with ``entries`` (batch, size (size + 1) / 2), by row.

    The diagonal passes through softplus.
    """
    rows: list[Tensor] = []
    zero = torch.zeros_like(entries[:, 0])
    position = 0
    for row in range(size):
        below = [entries[:, position + column] for column in range(row)]
        diagonal = F.softplus(entries[:, position + row]) + MINIMUM_SCALE
        rows.append(torch.stack([*below, diagonal, *[zero] * (size - row - 1)], dim=1))
        position += row + 1
    return torch.stack(rows, dim=1)


def negative_log_likelihood(mean: Tensor, scale: Tensor, labels: Tensor) -> Tensor:
    """Return −log N(labels; mean, L·Lᵀ) per sample in nats, (batch,).

    ``mean`` and ``labels`` are (batch, d), ``scale`` is (batch, d, d), lower triangular. Source:
    Arcelin 2021, equation 1.
    """
    white = whiten(mean, scale, labels)
    log_determinant = scale.diagonal(dim1=1, dim2=2).log().sum(1)
    return (
        0.5 * white.square().sum(1)
        + log_determinant
        + 0.5 * labels.shape[1] * math.log(2 * math.pi)
    )


def whiten(mean: Tensor, scale: Tensor, labels: Tensor) -> Tensor:
    """Return L⁻¹(labels − mean), (batch, d), by forward substitution.

    Shapes are those of ``negative_log_likelihood``. For a calibrated posterior the squared norm
    follows χ² with d degrees of freedom.
    """
    residual = labels - mean
    white: list[Tensor] = []
    for row in range(residual.shape[1]):
        known = sum(
            (scale[:, row, column] * white[column] for column in range(row)), residual[:, row] * 0
        )
        white.append((residual[:, row] - known) / scale[:, row, row])
    return torch.stack(white, dim=1)


def sum_metrics(mean: Tensor, scale: Tensor, labels: Tensor) -> Tensor:
    """Sum the metrics over a batch in float64, (5,).

    They are squared errors, negative log likelihood, samples inside the 68% and the 95% region, and
    samples. Shapes are those of ``negative_log_likelihood``.
    """
    radius_squared = widen(whiten(mean, scale, labels)).square().sum(1)
    return torch.stack(
        [
            widen(mean - labels).square().sum(),
            widen(negative_log_likelihood(mean, scale, labels)).sum(),
            (radius_squared < RADIUS_SQUARED["coverage_68"]).double().sum(),
            (radius_squared < RADIUS_SQUARED["coverage_95"]).double().sum(),
            torch.full((), len(labels), dtype=torch.float64, device=radius_squared.device),
        ]
    )
