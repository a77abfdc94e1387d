"""The network as published, in plain code: the reference is timed against it.

Same parameters, same loss, same gradients within rounding as ``model.ShapeNetwork``; default memory
layout, default Adam, no compilation, no autocast, float32. The tests compare the two.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cepheid.benchmarks.galaxy_shape.model import ShapeNetwork, make_lower_triangular
from cepheid.benchmarks.galaxy_shape.task import WORKLOAD as REFERENCE
from cepheid.reference.galaxies.stamps import Galaxies
from cepheid.reference.torch.broken import use_default_optimizer
from cepheid.reference.torch.workload import Norms
from cepheid.rules.errors import UserError


class PReLU(nn.Module):
    """max(x, 0) + slope · min(x, 0) with a slope per channel and position, (channels, y, x)."""

    def __init__(self, channels: int, side: int) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.zeros(channels, side, side))

    def forward(self, images: Tensor) -> Tensor:
        """Return the activations of ``images``, (batch, channels, side, side), in this shape."""
        return F.relu(images) - self.slope * F.relu(-images)


class PlainShapeNetwork(nn.Module):
    """The ``ShapeNetwork`` with the same options, in the published orientation.

    ``epsilon`` and ``momentum`` are those of its norm.
    Raises UserError for slopes or an input scaling other than the definition's.
    """

    def __init__(
        self,
        *,
        bands: int,
        pixels: int,
        filters: Iterable[int],
        targets: int,
        prelu: str,
        input_scaling: str,
        epsilon: float,
        momentum: float,
    ) -> None:
        super().__init__()
        if (prelu, input_scaling) != ("position", "asinh"):
            raise UserError(
                f"the plain network has no input_scaling={input_scaling} with prelu={prelu}, only "
                "asinh with position; fix: leave the setting out, or name other measurements than "
                "step with --only"
            )
        self.targets = targets
        self.norm = nn.BatchNorm2d(bands, epsilon, 1 - momentum)
        layers: list[nn.Module] = []
        channels, side = bands, pixels
        for width in filters:
            layers += [nn.Conv2d(channels, width, 3, padding=1), PReLU(width, side)]
            layers += [nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(width, width, 3, stride=2)]
            side //= 2
            layers += [PReLU(width, side)]
            channels = width
        self.trunk = nn.Sequential(*layers)
        self.head = nn.Linear(channels * side * side, targets + targets * (targets + 1) // 2)

    @torch.no_grad()
    def copy_parameters(self, other: ShapeNetwork) -> None:
        """Copy the parameters of ``other``."""
        for ours, theirs in zip(
            self.parameters(), rotate_as_published(other.parameters()), strict=True
        ):
            ours.copy_(theirs)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return what ``ShapeNetwork`` returns for images rotated by half a turn; same shapes."""
        images = torch.asinh(images.float() / 3)
        head = self.head(self.trunk(self.norm(images)).flatten(1))
        mean, entries = head[:, : self.targets], head[:, self.targets :]
        return mean, make_lower_triangular(entries, self.targets)


def rotate_as_published(values: Iterable[Tensor]) -> list[Tensor]:
    """Return parameters of a ``ShapeNetwork``, or gradients, in order, rotated as published.

    Slopes (y, x, channels) become (channels, y, x); the others keep their shapes.
    """
    turned, side = [], 1
    for value in values:
        if value.ndim == 4:  # a kernel: (out, in, y, x)
            value = value.flip(2, 3)
        elif value.ndim == 3:  # slopes: (y, x, channels)
            value, side = value.flip(0, 1).permute(2, 0, 1), value.shape[0]
        elif value.ndim == 2:  # the head: (outputs, channels · y · x)
            value = value.unflatten(1, (-1, side, side)).flip(2, 3).flatten(1)
        turned.append(value)
    return turned


def make_network(shape: Galaxies, norms: Norms) -> PlainShapeNetwork:
    """Return the plain network with the first weights of the reference."""
    options, norm_options = shape.network_options, shape.config.norm_options
    network = PlainShapeNetwork(**options, **norm_options)
    network.copy_parameters(ShapeNetwork(**options, make_norm=norms.make(**norm_options)))
    return network


WORKLOAD = use_default_optimizer(REFERENCE).vary(make_network=make_network)
"""The task with this network and torch's default optimizer; for precision=fp32 and compile=off."""
