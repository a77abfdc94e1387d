"""The networks as one writes them first: the reference is timed against them.

They have torch's default memory layout, Adam and batch norm, and no compilation; the same loader
reads the images. torchvision's networks cannot be the baseline: its builds for CPUs need CUDA
libraries.
"""

from typing import Any

import torch
from torch import nn

from cepheid.benchmarks.chest_xray.model import make_backbone
from cepheid.benchmarks.chest_xray.task import WORKLOAD as REFERENCE
from cepheid.benchmarks.chest_xray.task import Findings
from cepheid.reference.torch.images import keep_pixel_moments
from cepheid.reference.torch.workload import Norms, Recipe


def make_network(shape: Findings, norms: Norms) -> nn.Module:
    """Return the backbone at random weights; it sees contiguous images."""
    REFERENCE.make_network(shape, norms)  # draws as many numbers as the reference does
    facts = shape.config.definition.model
    network = make_backbone(shape.values.model_backbone, facts, nn.BatchNorm2d)
    keep_pixel_moments(network, facts)
    network.register_forward_pre_hook(
        lambda network, inputs: tuple(images.contiguous() for images in inputs)
    )
    return network


def make_optimizer(shape: Findings, network: Any) -> Recipe:
    """Return torch's default Adam, in two groups as in the reference."""
    groups = REFERENCE.make_optimizer(shape, network).groups
    return Recipe(torch.optim.Adam, groups, {"lr": shape.values.opt_base_learning_rate})


WORKLOAD = REFERENCE.vary(make_network=make_network, make_optimizer=make_optimizer, load_given=None)
"""The task with these networks; for compile=off and the precision of the reference."""
