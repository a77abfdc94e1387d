"""SSD (Liu et al. 2016, arXiv:1512.02325) on a residual network, as in MLPerf training 0.6.

At full scale the network is ResNet-34 (He et al. 2015, arXiv:1512.03385) to the end of its third
stage, which keeps its resolution, and five pairs of convolutions behind it. Modules of the backbone
have torchvision's names, so that given weights can be loaded.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cepheid.reference.torch.detection.default_boxes import Level
from cepheid.rules.errors import UserError

Normalisation = Callable[[int], nn.Module]
Maps = tuple[Tensor, ...]


class SSD(nn.Module):
    """A network from images, (n, 3, height, width), to what each place of several maps sees there.

    ``facts`` are those of the definition's ``model``: ``stem`` is its channels, its kernel and
    whether it ends with pooling; each of ``stages`` has channels, blocks and a stride; each of
    ``extras`` has inner and outer channels, a stride and a padding. The last stage and each extra
    make one of the maps of ``levels``. ``normalisation`` makes the layer after a convolution of the
    backbone, and of the extras if they are ``normalised``.
    """

    def __init__(
        self,
        facts: Mapping[str, Any],
        levels: Sequence[Level],
        normalisation: Normalisation = nn.BatchNorm2d,
    ) -> None:
        super().__init__()
        self.outputs = int(facts["classes"]) + 1  # with the background
        self.backbone = Backbone(facts["stem"], facts["stages"], normalisation)
        channels = [self.backbone.channels, *(outer for _, outer, _, _ in facts["extras"])]
        behind = normalisation if facts["normalised"] else None
        self.extras = nn.ModuleList(
            _make_extra(before, extra, behind)
            for before, extra in zip(channels[:-1], facts["extras"], strict=True)
        )
        self.box_heads, self.class_heads = (
            nn.ModuleList(
                nn.Conv2d(each, level.per_place * values, 3, padding=1)
                for each, level in zip(channels, levels, strict=True)
            )
            for values in (4, self.outputs)
        )
        _initialize(self)

    @property
    def heads(self) -> list[str]:
        """The names of the layers that make the maps of ``forward``."""
        kinds = ("box_heads", "class_heads")
        return [f"{kind}.{level}" for kind in kinds for level in range(len(self.box_heads))]

    def forward(self, images: Tensor) -> tuple[Maps, Maps]:
        """Return the maps of codes and of logits, (n, per place × 4 or × outputs, y, x) each."""
        features = [self.backbone(images)]
        for extra in self.extras:
            features.append(extra(features[-1]))
        codes = tuple(head(each) for head, each in zip(self.box_heads, features, strict=True))
        logits = tuple(head(each) for head, each in zip(self.class_heads, features, strict=True))
        return codes, logits


class Backbone(nn.Module):
    """A residual network of basic blocks without its classifier."""

    def __init__(
        self, stem: Mapping[str, Any], stages: Sequence[Sequence[int]], normalisation: Normalisation
    ) -> None:
        super().__init__()
        channels, kernel = stem["channels"], stem["kernel"]
        self.conv1 = nn.Conv2d(3, channels, kernel, stride=2, padding=kernel // 2, bias=False)
        self.bn1 = normalisation(channels)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1) if stem["pooled"] else nn.Identity()
        for number, (outer, blocks, stride) in enumerate(stages, 1):
            units = []
            for unit in range(blocks):
                units.append(BasicBlock(channels, outer, 1 if unit else stride, normalisation))
                channels = outer
            self.add_module(f"layer{number}", nn.Sequential(*units))
        self.stages, self.channels = len(stages), channels

    def forward(self, images: Tensor) -> Tensor:
        """Return the features, (n, channels, y, x), of images, (n, 3, height, width)."""
        features: Tensor = functional.relu(self.bn1(self.conv1(images)), inplace=True)
        features = self.maxpool(features)
        for stage in range(1, self.stages + 1):
            features = getattr(self, f"layer{stage}")(features)
        return features


class BasicBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut; the first one has the stride."""

    def __init__(
        self, channels: int, outer: int, stride: int, normalisation: Normalisation
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, outer, 3, stride=stride, padding=1, bias=False)
        self.bn1 = normalisation(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, padding=1, bias=False)
        self.bn2 = normalisation(outer)
        self.downsample: nn.Module = nn.Identity()
        if stride > 1 or channels != outer:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, outer, 1, stride=stride, bias=False), normalisation(outer)
            )

    def forward(self, features: Tensor) -> Tensor:
        """Map (n, channels, y, x) to (n, outer, y / stride, x / stride), rounded up."""
        inner = functional.relu(self.bn1(self.conv1(features)), inplace=True)
        return functional.relu(self.bn2(self.conv2(inner)) + self.downsample(features))


def _make_extra(
    channels: int, facts: Sequence[int], normalisation: Normalisation | None
) -> nn.Sequential:
    inner, outer, stride, padding = facts
    convolutions = (
        nn.Conv2d(channels, inner, 1, bias=not normalisation),
        nn.Conv2d(inner, outer, 3, stride=stride, padding=padding, bias=not normalisation),
    )
    layers: list[nn.Module] = []
    for convolution in convolutions:
        norm = [normalisation(convolution.out_channels)] if normalisation else []
        layers += [convolution, *norm, nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


def _initialize(network: SSD) -> None:
    """Initialise the backbone He-normal and the weights behind it Xavier-uniform.

    Their biases begin as PyTorch's default, as in the MLPerf reference.
    """
    for module in network.backbone.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    for part in (network.extras, network.box_heads, network.class_heads):
        for module in part.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.xavier_uniform_(module.weight)


def compute_cells(facts: Mapping[str, Any], pixels: int) -> list[int]:
    """Return the height and width of each map, for images of ``pixels`` × ``pixels``.

    Raises UserError where nothing is left of the last one.
    """
    strides = [2, *([2] if facts["stem"]["pooled"] else ()), *(each[2] for each in facts["stages"])]
    cells = pixels
    for stride in strides:
        cells = -(-cells // stride)
    maps = [cells]
    for _, _, stride, padding in facts["extras"]:
        maps.append((maps[-1] + 2 * padding - 3) // stride + 1)
    if min(maps) < 1:
        raise UserError(
            f"images of {pixels} × {pixels} pixels are too small for the {len(maps)} maps of the "
            "network; fix: choose larger images"
        )
    return maps


def join_maps(maps: Sequence[Tensor], values: int) -> Tensor:
    """Return maps, (n, per place × values, y, x) each, as one tensor, (n, k, values).

    The order is that of the default boxes: by maps, rows, columns, and shapes at a place.
    """
    parts = [each.permute(0, 2, 3, 1).reshape(len(each), -1, values) for each in maps]
    return torch.cat(parts, dim=1)
