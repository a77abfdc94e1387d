"""Broken variants of chest_xray: each must miss the target within the full budget.

They are mistakes and tricks that a quality target must detect. A patient in both parts is refused
before that, by the data (``reference/data/radiographs/layout.py``).
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import nn

from cepheid.benchmarks.chest_xray.model import LAST_LAYERS
from cepheid.benchmarks.chest_xray.task import ChestXray
from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch import broken
from cepheid.reference.torch.ranks.distributed import TorchRanks


class RandomStart(ChestXray):
    """The backbone begins at random weights: what there is to learn from must be in the images."""

    def __init__(self, config: RunConfig, ranks: TorchRanks) -> None:
        super().__init__(config, ranks)
        self.given_file = None


class ShuffledLabels(ChestXray):
    """Training labels belong to other images: only the share of each finding can be learnt."""

    def open_data(self) -> None:
        """Open the data, then permute the training labels."""
        super().open_data()
        labels, train = self.images.labels, self.definition.train_samples
        order = make_generator(self.config.seed, "shuffled labels").permutation(train)
        labels[:train] = labels[order]


class PermutedFindings(ChestXray):
    """The columns of the training labels are in another order: each finding has another's name."""

    def open_data(self) -> None:
        """Open the data, then give each finding's training labels to the next one."""
        super().open_data()
        train = self.definition.train_samples
        self.images.labels[:train] = np.roll(self.images.labels[:train], 1, axis=1)


class Frozen(broken.Frozen, ChestXray):
    """All weights stay as given or initialised."""


class FrozenBackbone(ChestXray):
    """Only the last layer learns, from features that were made for other images."""

    def make_network(self) -> nn.Module:
        """Return the network; gradients of the backbone are zero, and it has no weight decay."""
        network = super().make_network()
        last = LAST_LAYERS[self.hyperparameters.model_backbone]
        for name, parameter in network.named_parameters():
            if not name.startswith(last):
                parameter.register_hook(torch.zeros_like)
        return network


VARIANTS: Mapping[str, Callable[[RunConfig, TorchRanks], ChestXray]] = {
    "random_start": RandomStart,
    "shuffled_labels": ShuffledLabels,
    "permuted_findings": PermutedFindings,
    "frozen": Frozen,
    "frozen_backbone": FrozenBackbone,
}
