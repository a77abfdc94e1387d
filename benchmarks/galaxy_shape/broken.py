"""Broken variants of galaxy_shape: each must miss the targets within the full budget.

They are mistakes and tricks that a quality target must detect.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from cepheid.benchmarks.galaxy_shape.task import GalaxyShape
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch import broken
from cepheid.reference.torch.ranks.distributed import TorchRanks


class ShuffledLabels(broken.ShuffledLabels, GalaxyShape):
    """Training labels belong to other galaxies: only the prior can be learnt."""


class Frozen(broken.Frozen, GalaxyShape):
    """The weights stay as initialised."""


class BlindToOrientation(GalaxyShape):
    """The input is averaged over quarter turns: size and flux stay, the spin-2 signal vanishes."""

    def predict(self, stamps: Tensor, /) -> tuple[Tensor, Tensor]:
        """Return means and scale matrices of the symmetric part of stamps (n, bands, y, x)."""
        return super().predict(average_quarter_turns(stamps.float()))


def average_quarter_turns(stamps: Tensor) -> Tensor:
    """Return the mean of each stamp over its quarter turns, (batch, bands, pixels, pixels)."""
    turns = [torch.rot90(stamps, turn, (2, 3)) for turn in range(4)]
    return torch.stack(turns).mean(0)


class FixedCovariance(GalaxyShape):
    """The network predicts means only, and every galaxy has the same covariance.

    It is that of the target RMSE, so that the means may be right but the uncertainties are not.
    """

    def predict(self, stamps: Tensor, /) -> tuple[Tensor, Tensor]:
        """Return the network's means and a constant scale matrix, (n, d) and (n, d, d)."""
        mean, scale = super().predict(stamps)
        target = next(t.target for t in self.definition.quality if t.metric == "e_rmse")
        identity = torch.eye(scale.shape[1], device=scale.device)
        return mean, (target * identity).expand(scale.shape)


VARIANTS: Mapping[str, Callable[[RunConfig, TorchRanks], GalaxyShape]] = {
    "shuffled_labels": ShuffledLabels,
    "frozen": Frozen,
    "blind_to_orientation": BlindToOrientation,
    "fixed_covariance": FixedCovariance,
}
