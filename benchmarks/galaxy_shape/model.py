"""The shape network of Arcelin 2021 (section 3.2.1): from a stamp to a normal over (e1, e2).

Numerics follow the published Keras model, so that a twin can agree with it: 'same' padding at
stride 2 pads one side only, batch normalisation has epsilon 1e-3 and keeps 0.99 of its running
statistics, PReLU has one slope per position and channel and starts at 0, kernels start
Glorot-uniform and biases at 0. (PyTorch's default initialisation leaves this network at the prior
for many epochs.)

Turned by half a turn
    Keras pads at stride 2 below and on the right, which PyTorch can do only by copying the image.
    ``padding=1`` pads, in effect, above and on the left: what Keras does to an image that is
    turned by half a turn. So this is the published network with every kernel and every map of
    slopes turned. A turned galaxy has the same (e1, e2) and is as likely, so that nothing else
    changes. ``plain.py`` has the network as published, and how the two correspond.
"""

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reference.torch.distributed import GroupBatchNorm2d


def asinh(values: Tensor) -> Tensor:
    """The inverse hyperbolic sine of magnitudes below 1e19, by vector instructions; torch's own is
    ten times as slow on CPUs."""
    size = values.abs()
    squared = size.square()
    return torch.log1p(size + squared / (1 + torch.sqrt(1 + squared))).copysign(values)


# Pixels arrive in units of the sky noise. The published network takes them as they are; asinh keeps
# the noise linear and compresses the few bright galaxies that would else rule the batch statistics.
INPUT_SCALINGS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "asinh": lambda images: asinh(images / 3),
    "none": lambda images: images,
}
MINIMUM_SCALE = 1e-5  # added to the softplus of the diagonal, as TensorFlow Probability does


class SamePaddedConv2d(nn.Conv2d):
    """A 3×3 convolution with Keras' 'same' padding, turned: at stride 2 above and on the left.

    At stride 2 the sides of an image must be even.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int) -> None:
        super().__init__(in_channels, out_channels, 3, stride, padding=1)
        nn.init.xavier_uniform_(self.weight)
        assert self.bias is not None
        nn.init.zeros_(self.bias)


class PReLU(nn.Module):
    """max(x, 0) + slope · min(x, 0) with one slope per position and channel, or per channel.

    ``slope`` is (pixels, pixels, channels) or (1, 1, channels): Keras' order, and that of the
    activations in memory, without which its gradient takes longer than the convolutions.
    """

    def __init__(self, channels: int, pixels: int, per: str) -> None:
        super().__init__()
        sides = {"position": pixels, "channel": 1}[per]
        self.slope = nn.Parameter(torch.zeros(sides, sides, channels))

    def forward(self, images: Tensor) -> Tensor:
        """Same shape and type as ``images``, (batch, channels, pixels, pixels)."""
        slope = self.slope.permute(2, 0, 1)
        # Two relu: the gradient of clamp(max=0) is slow where nothing compiles it.
        return (F.relu(images) - slope * F.relu(-images)).to(images.dtype)


class NormalisedConv2d(nn.Module):
    """Batch normalisation and a 'same' convolution of stride 1 in one: ``convolution(norm(x))``.

    The norm multiplies and shifts each channel. Here the kernel is multiplied instead, and the
    shift enters as one more channel of ones (which ends, like the images, where the padding
    begins). So the images need no gradient, and are read and written once.
    """

    def __init__(self, norm: GroupBatchNorm2d, convolution: SamePaddedConv2d) -> None:
        super().__init__()
        self.norm, self.convolution = norm, convolution

    def forward(self, images: Tensor) -> Tensor:
        """(batch, in, height, width) to (batch, out, height, width)."""
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
        batch_norm_epsilon: float,
        batch_norm_momentum: float,
    ) -> None:
        super().__init__()
        self.targets = targets
        self.scale_input = INPUT_SCALINGS[input_scaling]
        norm = GroupBatchNorm2d(bands, batch_norm_epsilon, batch_norm_momentum)
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
        # Some first posteriors are so narrow that the likelihood starts at 1e5 nats and more; the
        # clipped gradient copes. From a head of zeros it stays longer at the prior.
        nn.init.xavier_uniform_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Images (batch, bands, pixels, pixels), in units of the sky noise, to means (batch, d) and
        scale matrices (batch, d, d), both in float32 whatever the precision of the trunk."""
        features = self.trunk(self.scale_input(images.float())).flatten(1)
        head = self.head(features).float()
        mean, entries = head[:, : self.targets], head[:, self.targets :]
        return mean, lower_triangular(entries, self.targets)


def lower_triangular(entries: Tensor, size: int) -> Tensor:
    """Entries (batch, size (size + 1) / 2), row by row, to matrices (batch, size, size); the
    diagonal passes through softplus."""
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
    """−log N(labels; mean, L·Lᵀ) per sample (Arcelin 2021, equation 1), in nats.

    Shapes: mean and labels (batch, d), scale (batch, d, d) lower triangular; returns (batch,).
    """
    white = whitened(mean, scale, labels)
    log_determinant = scale.diagonal(dim1=1, dim2=2).log().sum(1)
    return (
        0.5 * white.square().sum(1)
        + log_determinant
        + 0.5 * labels.shape[1] * math.log(2 * math.pi)
    )


def whitened(mean: Tensor, scale: Tensor, labels: Tensor) -> Tensor:
    """L⁻¹(labels − mean), by forward substitution: (batch, d).

    For a calibrated posterior its squared norm follows χ² with d degrees of freedom.
    """
    residual = labels - mean
    white: list[Tensor] = []
    for row in range(residual.shape[1]):
        known = sum(
            (scale[:, row, column] * white[column] for column in range(row)), residual[:, row] * 0
        )
        white.append((residual[:, row] - known) / scale[:, row, row])
    return torch.stack(white, dim=1)
