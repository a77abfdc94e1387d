"""Broken variants of galaxy_shape: each must miss the targets within the full budget.

They stand for mistakes and tricks that a quality target has to notice.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from benchmarks.galaxy_shape.task import GalaxyShape
from reference.run.config import RunConfig
from reference.run.seeding import generator
from reference.torch.distributed import TorchRanks


class ShuffledLabels(GalaxyShape):
    """Training labels belong to other galaxies: nothing can be learnt but the prior."""

    def open_data(self) -> None:
        """As ever, then deal the training labels out anew."""
        super().open_data()
        order = generator(self.config.seed, "shuffled labels").permutation(self.training_rows)
        self.labels = np.concatenate([self.labels[order], self.labels[self.evaluation_rows]])


class Frozen(GalaxyShape):
    """The weights stay as they were initialised."""

    def apply_gradients(self) -> None:
        """Count the samples, change nothing."""
        self.samples += self.config.global_batch_size
        self.optimizer.zero_grad()


class BlindToOrientation(GalaxyShape):
    """The input is averaged over quarter turns: size and flux stay, the spin-2 signal vanishes."""

    def read(
        self, rows: np.ndarray, orientations: np.ndarray | None = None
    ) -> tuple[Tensor, Tensor]:
        """Symmetrised stamps, true labels."""
        stamps, labels = super().read(rows, orientations)
        return symmetrised(stamps.float()), labels


def symmetrised(stamps: Tensor) -> Tensor:
    """The mean of a stamp over its four quarter turns, (batch, bands, pixels, pixels)."""
    turns = [torch.rot90(stamps, turn, (2, 3)) for turn in range(4)]
    return torch.stack(turns).mean(0)


class FixedCovariance(GalaxyShape):
    """The network predicts means only; every galaxy gets the same covariance, that of the target
    RMSE, so that the means may well be right and the uncertainties are not."""

    def _posterior(self, stamps: Tensor) -> tuple[Tensor, Tensor]:
        mean, scale = super()._posterior(stamps)
        target = next(t.target for t in self.definition.quality if t.metric == "e_rmse")
        identity = torch.eye(scale.shape[1], device=scale.device)
        return mean, (target * identity).expand(scale.shape)


VARIANTS: Mapping[str, Callable[[RunConfig, TorchRanks], GalaxyShape]] = {
    "shuffled_labels": ShuffledLabels,
    "frozen": Frozen,
    "blind_to_orientation": BlindToOrientation,
    "fixed_covariance": FixedCovariance,
}
