"""Broken variants of resnet50: each must miss the target within the full budget.

They are mistakes and tricks that a quality target must detect.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from torch import nn

from cepheid.benchmarks.resnet50.task import ResNet50
from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch import broken
from cepheid.reference.torch.ranks.distributed import TorchRanks

LINEAR_PEAK_RATE = 1e-3


class ShuffledLabels(ResNet50):
    """Training labels belong to other images: only the frequency of each class can be learnt."""

    def open_data(self) -> None:
        """Open the data, then permute the training labels."""
        super().open_data()
        train = self.definition.train_samples
        labels = self.images.labels
        labels[:train] = make_generator(self.config.seed, "shuffled labels").permutation(
            labels[:train]
        )


class Frozen(broken.Frozen, ResNet50):
    """The weights stay as initialised."""


class Linear(ResNet50):
    """A linear model of the pixels at a suitable rate: without features it confuses the classes."""

    def __init__(self, config: RunConfig, ranks: TorchRanks) -> None:
        super().__init__(config, ranks)
        self.schedule = replace(self.schedule, peak=LINEAR_PEAK_RATE)

    def make_network(self) -> nn.Module:
        """Return a linear layer from pixels to logits."""
        super().make_network()
        pixels = self.definition.model["pixels"]
        return nn.Sequential(nn.Flatten(), nn.Linear(3 * pixels**2, self.classes))


VARIANTS: Mapping[str, Callable[[RunConfig, TorchRanks], ResNet50]] = {
    "shuffled_labels": ShuffledLabels,
    "frozen": Frozen,
    "linear": Linear,
}
