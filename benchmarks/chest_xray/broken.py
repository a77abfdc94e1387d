"""Broken variants of chest_xray: each must miss the target within the full budget.

They are mistakes and tricks that a quality target must detect. A patient in both parts is refused
before that, by the data (``reference/data/radiographs/layout.py``).
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from cepheid.benchmarks.chest_xray.task import WORKLOAD, Batches, Findings
from cepheid.reference.torch import broken
from cepheid.reference.torch.workload import Norms, Seat, Workload


def open_permuted_findings(shape: Findings, seat: Seat) -> Batches:
    """Give each finding's training labels to the next one: each has another's name."""
    batches, train = Batches(shape, seat), shape.config.definition.train_samples
    batches.images.labels[:train] = np.roll(batches.images.labels[:train], 1, axis=1)
    return batches


def freeze_backbone(shape: Findings, norms: Norms) -> nn.Module:
    """Return the network that keeps features made for other images: only the last layer learns.

    Gradients of the backbone are zero, and it has no weight decay.
    """
    network = WORKLOAD.make_network(shape, norms)
    for name, parameter in network.named_parameters():
        if not name.startswith(shape.last_layer):
            parameter.register_hook(torch.zeros_like)
    return network


VARIANTS: Mapping[str, Workload[Findings]] = {
    # Without given weights what there is to learn from must be in the images.
    "random_start": WORKLOAD.vary(
        read_shape=lambda config: replace(Findings.read(config), given=None)
    ),
    "shuffled_labels": broken.shuffle_labels(WORKLOAD),
    "permuted_findings": WORKLOAD.vary(open_data=open_permuted_findings),
    "frozen": broken.freeze(WORKLOAD),
    "frozen_backbone": WORKLOAD.vary(make_network=freeze_backbone),
}
