"""Broken variants of galaxy_generation: each must miss a target.

They are fast, or easy, and generate no new galaxies.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from benchmarks.galaxy_generation import weights
from benchmarks.galaxy_generation.task import GalaxyGeneration
from benchmarks.galaxy_vae.stamps import middle
from reference.data import galaxies
from reference.run.config import RunConfig
from reference.torch.distributed import TorchRanks


class RandomWeights(GalaxyGeneration):
    """The network as it was initialised."""

    def build(self) -> int:
        """As ever, with other weights."""
        self.weights = weights.untrained(self.config)
        return super().build()


class OneImageRepeated(GalaxyGeneration):
    """The first image stands for all."""

    def decode(self, latents: Tensor) -> Tensor:
        """One image, many times."""
        images = super().decode(latents)
        images.copy_(images[:1].clone().expand_as(images))
        return images


class TrainingImagesReplayed(GalaxyGeneration):
    """Nothing is generated: stored training images are shown."""

    def decode(self, latents: Tensor) -> Tensor:
        """The first training images, again and again where there are not enough."""
        images = self._room_for(len(latents))
        stored = middle(galaxies.load(self.folder).noise_free, self.definition.model["pixels"])
        rows = torch.arange(len(images)) % self.definition.train_samples
        images.copy_(torch.from_numpy(stored[rows.numpy()]))
        return images


class LatentsZeroed(GalaxyGeneration):
    """The decoder is always asked for the same galaxy."""

    def sample(self, images: int, repetition: int) -> Tensor:
        """Zeros."""
        return torch.zeros_like(super().sample(images, repetition))


class NoFlow(GalaxyGeneration):
    """N(0, 1) latents, which no flow has carried to where galaxies are."""

    def sample(self, images: int, repetition: int) -> Tensor:
        """The noise itself."""
        return self._noise("generated images", images, repetition)


VARIANTS: Mapping[str, Callable[[RunConfig, TorchRanks], GalaxyGeneration]] = {
    "random_weights": RandomWeights,
    "one_image_repeated": OneImageRepeated,
    "training_images_replayed": TrainingImagesReplayed,
    "latents_zeroed": LatentsZeroed,
    "no_flow": NoFlow,
}
