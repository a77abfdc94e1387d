"""ResNet-50: version 1.5 of He et al. 2015 (arXiv:1512.03385), and ResNet-D as an option.

In v1.5 the 3×3 convolution of a bottleneck has the stride; in the paper it is the 1×1 convolution
before it. Modules have torchvision's names, so that weights and tables of shapes can be exchanged.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from cepheid.reference.torch.devices.values import make_constant, widen

Variant = Literal["v1_5", "d"]
Normalisation = Callable[[int], nn.Module]

IMAGE_MEAN = (0.485, 0.456, 0.406)  # of ImageNet's training images, red, green, blue, in [0, 1]
IMAGE_DEVIATION = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Architecture:
    """The number of blocks in each stage, and what a block is made of.

    ``kernels`` are the sizes of its convolutions, one after the other. A block has ``expansion``
    times as many channels at its end as inside, where they double with each stage.
    """

    blocks: tuple[int, ...]
    kernels: tuple[int, ...] = (1, 3, 1)
    expansion: int = 4

    def list_channels(self, width: int) -> list[int]:
        """Return the channels after each stage, for ``width`` channels of the stem."""
        return [width * 2**stage * self.expansion for stage in range(len(self.blocks))]


RESNET50 = Architecture((3, 4, 6, 3))
ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {  # He et al. 2015, table 1
        "resnet18": Architecture((2, 2, 2, 2), kernels=(3, 3), expansion=1),
        "resnet34": Architecture((3, 4, 6, 3), kernels=(3, 3), expansion=1),
        "resnet50": RESNET50,
        "resnet101": Architecture((3, 4, 23, 3)),
    }
)


class ResNet(nn.Module):
    """A network from images, (n, 3, height, width), to logits, (n, classes).

    ``width`` is the number of channels of the stem, 64 as published. ``normalisation`` makes the
    layer after each convolution. The ``d`` variant (He et al. 2019, arXiv:1812.01187) has three 3×3
    convolutions as its stem and averages before it projects a shortcut.
    """

    def __init__(
        self,
        classes: int = 1000,
        width: int = 64,
        architecture: Architecture = RESNET50,
        variant: Variant = "v1_5",
        normalisation: Normalisation = nn.BatchNorm2d,
    ) -> None:
        super().__init__()
        self.conv1: nn.Module = _make_stem(width, variant, normalisation)
        self.bn1 = normalisation(width)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        channels = width
        for stage, count in enumerate(architecture.blocks):
            inner = width * 2**stage
            units = []
            for unit in range(count):
                stride = 2 if unit == 0 and stage > 0 else 1
                units.append(Block(architecture, channels, inner, stride, variant, normalisation))
                channels = inner * architecture.expansion
            self.add_module(f"layer{stage + 1}", nn.Sequential(*units))
        self.stages = len(architecture.blocks)
        self.fc = nn.Linear(channels, classes)
        _initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, (n, classes), of images, (n, 3, height, width)."""
        features = self.stem(images)
        for stage in range(1, self.stages + 1):
            features = getattr(self, f"layer{stage}")(features)
        return self.classify(features)

    def stem(self, images: Tensor) -> Tensor:
        """Return the features, (n, width, y, x), of images, (n, 3, height, width)."""
        return self.maxpool(functional.relu(self.bn1(self.conv1(images)), inplace=True))

    def classify(self, features: Tensor) -> Tensor:
        """Return the logits, (n, classes), of the last features, (n, channels, y, x)."""
        return self.fc(features.mean((2, 3)))


class Block(nn.Module):
    """The convolutions of ``architecture`` beside a shortcut; the first 3×3 one has the stride."""

    def __init__(
        self,
        architecture: Architecture,
        channels: int,
        inner: int,
        stride: int,
        variant: Variant,
        normalisation: Normalisation,
    ) -> None:
        super().__init__()
        outer = inner * architecture.expansion
        self.stride, self.channels = stride, outer
        self.convolutions = len(architecture.kernels)
        strided, into = architecture.kernels.index(3), channels
        for place, kernel in enumerate(architecture.kernels):
            out = outer if place + 1 == self.convolutions else inner
            step = stride if place == strided else 1
            convolution = nn.Conv2d(into, out, kernel, step, padding=kernel // 2, bias=False)
            self.add_module(f"conv{place + 1}", convolution)
            self.add_module(f"bn{place + 1}", normalisation(out))
            into = out
        self.downsample = (
            _make_projection(channels, outer, stride, variant, normalisation)
            if stride > 1 or channels != outer
            else nn.Identity()
        )

    def forward(self, features: Tensor) -> Tensor:
        """Map (n, …, y, x) to (n, channels, y / stride, x / stride), rounded up."""
        inner = self.convolve(1, features)
        for place in range(2, self.convolutions + 1):
            inner = self.convolve(place, functional.relu(inner, inplace=True))
        return functional.relu(inner + self.downsample(features))

    def convolve(self, place: int, features: Tensor) -> Tensor:
        """Return the normalised result of convolution ``place``, from 1 on, (n, …, y, x)."""
        return getattr(self, f"bn{place}")(getattr(self, f"conv{place}")(features))


def _make_stem(width: int, variant: Variant, normalisation: Normalisation) -> nn.Module:
    if variant == "v1_5":
        return nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
    half = width // 2
    return nn.Sequential(
        nn.Conv2d(3, half, 3, stride=2, padding=1, bias=False),
        normalisation(half),
        nn.ReLU(inplace=True),
        nn.Conv2d(half, half, 3, padding=1, bias=False),
        normalisation(half),
        nn.ReLU(inplace=True),
        nn.Conv2d(half, width, 3, padding=1, bias=False),
    )


def _make_projection(
    channels: int, outer: int, stride: int, variant: Variant, normalisation: Normalisation
) -> nn.Sequential:
    if variant == "d" and stride > 1:
        return nn.Sequential(
            nn.AvgPool2d(stride, stride, ceil_mode=True, count_include_pad=False),
            nn.Conv2d(channels, outer, 1, bias=False),
            normalisation(outer),
        )
    return nn.Sequential(
        nn.Conv2d(channels, outer, 1, stride=stride, bias=False), normalisation(outer)
    )


def _initialize(network: ResNet) -> None:
    """Initialise the weights so that each block begins as its shortcut.

    Convolutions are He-normal and the classifier is small (Goyal et al. 2017, arXiv:1706.02677,
    section 5.1).
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
            nn.init.zeros_(module.bias)
        elif isinstance(module, Block):
            nn.init.zeros_(getattr(module, f"bn{module.convolutions}").weight)


def scale_pixels(images: Tensor) -> Tensor:
    """Return uint8 images (n, height, width, 3) as float32 (n, 3, height, width) for the network.

    They have mean 0 and deviation 1 over ImageNet. Channels stay last in memory.
    """
    device = images.device
    mean = 255 * make_constant(IMAGE_MEAN, device)
    deviation = 255 * make_constant(IMAGE_DEVIATION, device)
    return ((images.float() - mean) / deviation).permute(0, 3, 1, 2)


def is_exempt(parameter: nn.Parameter) -> bool:
    """Return whether a parameter is a bias or belongs to batch normalisation.

    These are exempt from weight decay and from LARS, as in the MLPerf reference.
    """
    return parameter.ndim <= 1


def sum_metrics(logits: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    """Sum the metrics over the valid part of a batch, in float64, (4,).

    They are hits, hits among five guesses, cross-entropy and images. ``logits`` are (n, classes),
    ``labels`` and ``valid`` (n,).
    """
    hits = logits.topk(min(5, logits.shape[1])).indices == labels[:, None]
    losses = functional.cross_entropy(logits, labels, reduction="none")
    columns = [hits[:, 0], hits.any(1), losses, torch.ones_like(losses)]
    return torch.stack([widen(column.where(valid, 0.0)).sum() for column in columns])
