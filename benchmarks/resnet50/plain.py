"""The ResNet-50 of `transformers` in a plain eager loop: the reference is timed against it.

torchvision's and timm's would be more usual, but their CPU builds need CUDA libraries. This one has
the default memory layout, torch's default SGD and no compilation; the same loader reads the images.
"""

import torch
from torch import Tensor, nn

from cepheid.benchmarks.resnet50.model import RESNET50
from cepheid.benchmarks.resnet50.task import WORKLOAD as REFERENCE
from cepheid.benchmarks.resnet50.task import Photographs
from cepheid.reference.torch.workload import Norms, Recipe
from cepheid.rules.errors import UserError


class Peer(nn.Module):
    """The network of `transformers`, whose 3×3 convolution has the stride, too."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        try:
            from transformers import ResNetConfig, ResNetForImageClassification
        except ImportError as error:
            raise UserError(
                "transformers is not installed, and the step is compared with its ResNet-50: "
                "pip install transformers, or leave the step out with --only"
            ) from error
        self.network = ResNetForImageClassification(
            ResNetConfig(
                embedding_size=width,
                hidden_sizes=RESNET50.list_channels(width),
                depths=list(RESNET50.blocks),
                num_labels=classes,
            )
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, (n, classes), of images, (n, 3, height, width)."""
        return self.network(images.contiguous()).logits


def make_network(shape: Photographs, norms: Norms) -> nn.Module:
    """Return the network of `transformers`, with our width."""
    REFERENCE.make_network(shape, norms)  # draws as many numbers as the reference does
    return Peer(shape.config.definition.model["width"], shape.classes)


def make_optimizer(shape: Photographs, model: nn.Module) -> Recipe:
    """Return torch's default SGD with two groups, as in the reference."""
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1]},
        {"params": [p for p in model.parameters() if p.ndim == 1]},
    ]
    return Recipe(torch.optim.SGD, groups, {"lr": 0.1, "momentum": shape.values.opt_momentum})


WORKLOAD = REFERENCE.vary(make_network=make_network, make_optimizer=make_optimizer)
"""The task with this network; for compile=off and the precision of the reference."""
