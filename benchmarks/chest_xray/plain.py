"""The networks as one writes them first: the reference is timed against them.

They have torch's default memory layout, Adam and batch norm, and no compilation; the same loader
reads the images. torchvision's networks cannot be the baseline: its builds for CPUs need CUDA
libraries.
"""

import torch
from torch import Tensor, nn

from cepheid.benchmarks.chest_xray.model import make_backbone
from cepheid.benchmarks.chest_xray.task import ChestXray
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch.ranks.distributed import TorchRanks


def create(config: RunConfig, ranks: TorchRanks) -> "PlainChestXray":
    """Return the task; ``config`` has compile=off and the precision of the reference."""
    return PlainChestXray(config, ranks)


class PlainChestXray(ChestXray):
    """The task with torch's own batch norms, layout and Adam."""

    def make_network(self) -> nn.Module:
        """Return the backbone at random weights."""
        super().make_network()
        return make_backbone(self.hyperparameters.model_backbone, self.facts, nn.BatchNorm2d)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return torch's default Adam, in two groups as in the reference."""
        groups = [{"params": group["params"]} for group in super().make_optimizer().param_groups]
        self.parallel = self.model
        return torch.optim.Adam(groups, lr=self.hyperparameters.opt_base_learning_rate)

    def scale_pixels(self, images: Tensor) -> Tensor:
        """Return images as float32 (n, 3, y, x), contiguous."""
        return super().scale_pixels(images).contiguous()
