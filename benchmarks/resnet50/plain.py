"""The ResNet-50 of `transformers` in a plain eager loop: what the reference is timed against.

torchvision's and timm's would be more usual, but have no CPU builds that need no CUDA libraries.
Default memory layout, torch's default SGD, no compilation; the images are read by the same loader.
"""

import torch
from torch import Tensor, nn

from benchmarks.resnet50.model import BLOCKS, EXPANSION
from benchmarks.resnet50.task import ResNet50
from reference.run.config import RunConfig
from reference.torch.distributed import TorchRanks
from rules.errors import UserError


def create(config: RunConfig, ranks: TorchRanks) -> "PeerResNet50":
    """The task; ``config`` has compile=off and the precision of the reference."""
    return PeerResNet50(config, ranks)


class Peer(nn.Module):
    """`transformers`' network, which strides in the 3×3 convolution too."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        try:
            from transformers import ResNetConfig, ResNetForImageClassification
        except ImportError as error:
            raise UserError(
                "transformers is not installed, and its ResNet-50 is what the step is compared "
                "with: pip install transformers, or leave the step out with --only"
            ) from error
        self.network = ResNetForImageClassification(
            ResNetConfig(
                embedding_size=width,
                hidden_sizes=[width * EXPANSION * 2**stage for stage in range(len(BLOCKS))],
                depths=list(BLOCKS),
                num_labels=classes,
            )
        )

    def forward(self, images: Tensor) -> Tensor:
        """Logits of images in the default memory layout."""
        logits: Tensor = self.network(images.contiguous()).logits
        return logits


class PeerResNet50(ResNet50):
    """The task with this network and SGD as torch makes it by default."""

    def make_network(self) -> nn.Module:
        """That of `transformers`, as wide as ours."""
        super().make_network()
        return Peer(self.definition.model["width"], self.classes)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Two groups, as the reference has."""
        self.parallel = self.model
        values = self.config.hyperparameters
        groups = [
            {"params": [p for p in self.model.parameters() if p.ndim > 1]},
            {"params": [p for p in self.model.parameters() if p.ndim == 1]},
        ]
        return torch.optim.SGD(groups, lr=0.1, momentum=float(values["opt_momentum"]))
