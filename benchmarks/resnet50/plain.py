"""The ResNet-50 of `transformers` in a plain eager loop: the reference is timed against it.

torchvision's and timm's would be more usual, but their CPU builds need CUDA libraries. This one has
the default memory layout, torch's default SGD and no compilation; the same loader reads the images.
"""

import torch
from torch import Tensor, nn

from cepheid.benchmarks.resnet50.model import RESNET50
from cepheid.benchmarks.resnet50.task import ResNet50
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch.ranks.distributed import TorchRanks
from cepheid.rules.errors import UserError


def create(config: RunConfig, ranks: TorchRanks) -> "PeerResNet50":
    """Return the task; ``config`` has compile=off and the precision of the reference."""
    return PeerResNet50(config, ranks)


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
        logits: Tensor = self.network(images.contiguous()).logits
        return logits


class PeerResNet50(ResNet50):
    """The task with this network and torch's default SGD."""

    def make_network(self) -> nn.Module:
        """Return the network of `transformers`, with our width."""
        super().make_network()
        return Peer(self.definition.model["width"], self.classes)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return SGD with two groups, as in the reference."""
        self.parallel = self.model
        groups = [
            {"params": [p for p in self.model.parameters() if p.ndim > 1]},
            {"params": [p for p in self.model.parameters() if p.ndim == 1]},
        ]
        return torch.optim.SGD(groups, lr=0.1, momentum=self.hyperparameters.opt_momentum)
