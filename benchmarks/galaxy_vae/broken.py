"""Broken variants of galaxy_vae: each must miss the targets within the full budget.

They stand for mistakes and tricks that a quality target has to notice.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from benchmarks.galaxy_vae.task import GalaxyVaeTask
from reference.run.config import RunConfig
from reference.torch.distributed import TorchRanks


class ShuffledTargets(GalaxyVaeTask):
    """Each galaxy is to be reconstructed as another one of the batch."""

    def _target(self, images: Tensor) -> Tensor:
        return images.roll(1, 0)


class Frozen(GalaxyVaeTask):
    """The weights stay as they were initialised."""

    def apply_gradients(self) -> None:
        """Count the samples, change nothing."""
        self.samples += self.config.global_batch_size
        self.optimizer.zero_grad()


class UntrainedFlow(GalaxyVaeTask):
    """The flow stays the identity: new galaxies are decoded from N(0, 1), as a plain VAE's are."""

    def apply_gradients(self) -> None:
        """As ever for the autoencoder."""
        for parameter in self.model.flow.parameters():
            parameter.grad = torch.zeros_like(parameter)
        super().apply_gradients()


class BlindDecoder(GalaxyVaeTask):
    """The decoder learns without latents, so that it makes the mean galaxy (posterior collapse)."""

    def _latents(self, mean: Tensor, scale: Tensor, normal: Tensor) -> Tensor:
        return super()._latents(mean, scale, normal) * 0


class OneBand(GalaxyVaeTask):
    """All bands are to be the reconstruction of r: galaxies without colours."""

    def _target(self, images: Tensor) -> Tensor:
        r = self.definition.data["bands"].index("r")
        return images[:, r : r + 1].expand(images.shape)


VARIANTS: Mapping[str, Callable[[RunConfig, TorchRanks], GalaxyVaeTask]] = {
    "shuffled_targets": ShuffledTargets,
    "frozen": Frozen,
    "untrained_flow": UntrainedFlow,
    "blind_decoder": BlindDecoder,
    "one_band": OneBand,
}
