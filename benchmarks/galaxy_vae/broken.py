"""Broken variants of galaxy_vae: each must miss the targets within the full budget.

They are mistakes and tricks that a quality target must detect.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from cepheid.benchmarks.galaxy_vae.task import GalaxyVaeTask
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch import broken
from cepheid.reference.torch.ranks.distributed import TorchRanks


class ShuffledTargets(GalaxyVaeTask):
    """The target of each reconstruction is another galaxy of the batch."""

    def reconstruction_target(self, images: Tensor) -> Tensor:
        """Return the images of the batch, each in the place of another one, in the same shape."""
        return images.roll(1, 0)


class Frozen(broken.Frozen, GalaxyVaeTask):
    """The weights stay as initialised."""


class UntrainedFlow(GalaxyVaeTask):
    """The flow stays the identity: new galaxies are decoded from N(0, 1), as in a plain VAE."""

    def apply_gradients(self) -> None:
        """Change the weights of the autoencoder only."""
        for parameter in self.model.flow.parameters():
            parameter.grad = torch.zeros_like(parameter)
        super().apply_gradients()


class BlindDecoder(GalaxyVaeTask):
    """The decoder learns without latents and makes the mean galaxy (posterior collapse)."""

    def draw_latents(self, mean: Tensor, scale: Tensor, normal: Tensor) -> Tensor:
        """Return zeros, (n, latents)."""
        return super().draw_latents(mean, scale, normal) * 0


class OneBand(GalaxyVaeTask):
    """The target of all bands is r: galaxies without colours."""

    def reconstruction_target(self, images: Tensor) -> Tensor:
        """Return the r band in all bands, in the shape of ``images``."""
        r = self.definition.data["bands"].index("r")
        return images[:, r : r + 1].expand(images.shape)


VARIANTS: Mapping[str, Callable[[RunConfig, TorchRanks], GalaxyVaeTask]] = {
    "shuffled_targets": ShuffledTargets,
    "frozen": Frozen,
    "untrained_flow": UntrainedFlow,
    "blind_decoder": BlindDecoder,
    "one_band": OneBand,
}
