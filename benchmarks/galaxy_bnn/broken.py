"""Broken variants of galaxy_bnn: each must miss the targets within the full budget.

They are networks that only claim to be Bayesian, and mistakes in the training.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from cepheid.benchmarks.galaxy_bnn.model import iterate_gaussian_weights
from cepheid.benchmarks.galaxy_bnn.task import GalaxyBnn
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch import broken
from cepheid.reference.torch.ranks.distributed import TorchRanks


class PosteriorScaleZero(GalaxyBnn):
    """A deterministic network in disguise: all draws of the weights are the same."""

    def build(self) -> int:
        """Build the task, then set the width of every posterior to nearly zero."""
        count = super().build()
        with torch.no_grad():
            for _, posterior in iterate_gaussian_weights(self.model):
                posterior.untransformed_scale.fill_(-20)  # a standard deviation of 2e-9
        return count


class WithoutKL(GalaxyBnn):
    """Only the likelihood is trained, so that the posteriors may become arbitrarily narrow."""

    def compute_loss(self, stamps: Tensor, labels: Tensor, /) -> Tensor:
        """Return the mean negative log likelihood alone; shapes as ``GalaxyBnn.compute_loss``."""
        return self.compute_likelihood_loss(stamps, labels)


class ShuffledLabels(broken.ShuffledLabels, GalaxyBnn):
    """Training labels belong to other galaxies: only the prior can be learnt."""


class Frozen(broken.Frozen, GalaxyBnn):
    """The means and widths of the weights stay as initialised."""


VARIANTS: Mapping[str, Callable[[RunConfig, TorchRanks], GalaxyBnn]] = {
    "posterior_scale_zero": PosteriorScaleZero,
    "without_kl": WithoutKL,
    "shuffled_labels": ShuffledLabels,
    "frozen": Frozen,
}
