"""The backbones, with a last layer of fourteen logits: DenseNet-121, ResNet-50 and VGG-16.

Huang et al. 2017 (arXiv:1608.06993; CheXNet's, Rajpurkar et al. 2017, arXiv:1711.05225), He et al.
2015 (arXiv:1512.03385) and Simonyan & Zisserman 2015 (arXiv:1409.1556, configuration D). Modules
have torchvision's names, so that its weights of ImageNet fit.
"""

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cepheid.benchmarks.resnet50.model import Normalisation, ResNet

GROWTH, BOTTLENECK = 32, 4  # channels that a dense layer adds; and within it, in those
DENSE_BLOCKS = (6, 12, 24, 16)
VGG_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))  # channels, convolutions
VGG_HIDDEN, VGG_CELLS, VGG_DROPOUT = 4096, 7, 0.5
LAST_DEVIATION = 0.01  # of the last layer's first weights
OLD_DENSE_NAME = re.compile(r"(.*denselayer\d+\.(?:norm|conv))\.([12]\..*)")


class DenseNet(nn.Module):
    """DenseNet-121: each layer sees the features of all layers before it in its block."""

    def __init__(self, outputs: int, normalisation: Normalisation = nn.BatchNorm2d) -> None:
        super().__init__()
        channels = 2 * GROWTH
        features: dict[str, nn.Module] = {
            "conv0": nn.Conv2d(3, channels, 7, 2, 3, bias=False),
            "norm0": normalisation(channels),
            "relu0": nn.ReLU(inplace=True),
            "pool0": nn.MaxPool2d(3, 2, 1),
        }
        for number, layers in enumerate(DENSE_BLOCKS, start=1):
            if number > 1:
                features[f"transition{number - 1}"] = _make_transition(channels, normalisation)
                channels //= 2
            block: dict[str, nn.Module] = {}
            for layer in range(1, layers + 1):
                block[f"denselayer{layer}"] = DenseLayer(channels, normalisation)
                channels += GROWTH
            features[f"denseblock{number}"] = nn.Sequential(OrderedDict(block))
        self.features = nn.Sequential(OrderedDict(features, norm5=normalisation(channels)))
        self.classifier = nn.Linear(channels, outputs)
        _initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (n, outputs) of images (n, 3, y, x)."""
        features = functional.relu(self.features(images), inplace=True)
        return self.classifier(features.mean((2, 3)))


class DenseLayer(nn.Module):
    """Add GROWTH channels to the features."""

    def __init__(self, channels: int, normalisation: Normalisation) -> None:
        super().__init__()
        inner = BOTTLENECK * GROWTH
        self.norm1 = normalisation(channels)
        self.conv1 = nn.Conv2d(channels, inner, 1, bias=False)
        self.norm2 = normalisation(inner)
        self.conv2 = nn.Conv2d(inner, GROWTH, 3, padding=1, bias=False)

    def forward(self, features: Tensor) -> Tensor:
        """Map (n, channels, y, x) to (n, channels + GROWTH, y, x)."""
        inner = self.conv1(functional.relu(self.norm1(features), inplace=True))
        return torch.cat(
            (features, self.conv2(functional.relu(self.norm2(inner), inplace=True))), 1
        )


class VGG(nn.Module):
    """VGG-16: convolutions in a row, then two large dense layers with dropout. It has no norms."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width, convolutions in VGG_STAGES:
            for _ in range(convolutions):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            *_make_hidden(channels * VGG_CELLS**2),
            *_make_hidden(VGG_HIDDEN),
            nn.Linear(VGG_HIDDEN, outputs),
        )
        _initialize(self)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (n, outputs) of images (n, 3, y, x)."""
        cells = functional.adaptive_avg_pool2d(self.features(images), VGG_CELLS)
        return self.classifier(cells.flatten(1))


def make_backbone(name: str, facts: Mapping[str, Any], normalisation: Normalisation) -> nn.Module:
    """Return a backbone with the outputs of the definition's ``model`` section."""
    outputs, width = int(facts["outputs"]), int(facts.get("width", 64))
    makers: Mapping[str, Callable[[], nn.Module]] = {
        "densenet121": lambda: DenseNet(outputs, normalisation),
        "resnet50": lambda: ResNet(outputs, width, normalisation=normalisation),
        "vgg16": lambda: VGG(outputs),
    }
    return makers[name]()


LAST_LAYERS = {"densenet121": "classifier.", "resnet50": "fc.", "vgg16": "classifier.6."}
"""How the names of the last layer begin, which no given weights have."""


def rename_given(name: str) -> str:
    """Return our name of a tensor in torchvision's files, in which DenseNet has older names."""
    return OLD_DENSE_NAME.sub(r"\1\2", name)


def _make_transition(channels: int, normalisation: Normalisation) -> nn.Sequential:
    """Return what halves channels and sides between two dense blocks."""
    return nn.Sequential(
        OrderedDict(
            norm=normalisation(channels),
            relu=nn.ReLU(inplace=True),
            conv=nn.Conv2d(channels, channels // 2, 1, bias=False),
            pool=nn.AvgPool2d(2, 2),
        )
    )


def _make_hidden(features: int) -> Sequence[nn.Module]:
    return nn.Linear(features, VGG_HIDDEN), nn.ReLU(inplace=True), nn.Dropout(VGG_DROPOUT)


def _initialize(network: nn.Module) -> None:
    """Initialise the weights: He-normal, and small in linear layers; biases are 0."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=LAST_DEVIATION)
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
