"""The task in torch's default memory layout: where `cepheid measure costs --ladder` starts."""

import torch
from torch import Tensor, nn
from torch.nn.utils import convert_conv2d_weight_memory_format

from cepheid.benchmarks.kfac.task import PreconditionedResNet50
from cepheid.benchmarks.resnet50.model import scale_pixels


class ChannelsFirst(PreconditionedResNet50):
    """The task with all images and weights in torch's default memory layout."""

    def make_network(self) -> nn.Module:
        """Return the network; the task's own has channels last."""
        network = super().make_network()
        convert_conv2d_weight_memory_format(network, torch.contiguous_format)
        return network

    def compute_logits(self, images: Tensor, /) -> Tensor:
        """Return the logits of images, float32 (batch, classes)."""
        with self.autocast():
            logits: Tensor = self.parallel(scale_pixels(images).contiguous())
        return logits.float()
