"""Broken variants of galaxy_bnn: each must miss the targets within the full budget.

They stand for what calls itself Bayesian and is not, and for mistakes in the training.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from benchmarks.galaxy_bnn.model import gaussian_weights
from benchmarks.galaxy_bnn.task import GalaxyBnn
from benchmarks.galaxy_shape import broken
from benchmarks.galaxy_shape.task import GalaxyShape
from reference.run.config import RunConfig
from reference.torch.distributed import TorchRanks


class PosteriorScaleZero(GalaxyBnn):
    """A deterministic network in disguise: all draws of the weights are the same."""

    def build(self) -> int:
        """As ever, then take the width from every posterior."""
        count = super().build()
        with torch.no_grad():
            for _, posterior in gaussian_weights(self.model):
                posterior.untransformed_scale.fill_(-20)  # a standard deviation of 2e-9
        return count


class WithoutKL(GalaxyBnn):
    """The likelihood alone is trained: nothing holds the posterior's width up."""

    def _mean_loss(self, stamps: Tensor, labels: Tensor) -> Tensor:
        return GalaxyShape._mean_loss(self, stamps, labels)


class ShuffledLabels(broken.ShuffledLabels, GalaxyBnn):
    """Training labels belong to other galaxies: nothing can be learnt but the prior."""


class Frozen(broken.Frozen, GalaxyBnn):
    """The weights' means and widths stay as they were initialised."""


VARIANTS: Mapping[str, Callable[[RunConfig, TorchRanks], GalaxyBnn]] = {
    "posterior_scale_zero": PosteriorScaleZero,
    "without_kl": WithoutKL,
    "shuffled_labels": ShuffledLabels,
    "frozen": Frozen,
}
