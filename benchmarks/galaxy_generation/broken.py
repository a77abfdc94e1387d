"""Broken variants of galaxy_generation: each must miss a target.

They are fast or easy, but generate no new galaxies.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from cepheid.benchmarks.galaxy_generation import weights
from cepheid.benchmarks.galaxy_generation.task import GalaxyGeneration
from cepheid.reference.data import galaxies, generators
from cepheid.reference.galaxies.stamps import crop_middle
from cepheid.reference.run.generation import GenerationWorkload


class RandomWeights(GalaxyGeneration):
    """The network as initialised."""

    def build(self) -> int:
        """Build the task with untrained weights."""
        self.weights = weights.make_untrained(self.config)
        return super().build()


class OneImageRepeated(GalaxyGeneration):
    """The first image replaces all others."""

    def decode(self, latents: Tensor) -> Tensor:
        """Return one image many times, (n, bands, pixels, pixels)."""
        images = super().decode(latents)
        images.copy_(images[:1].clone().expand_as(images))
        return images


class TrainingImagesReplayed(GalaxyGeneration):
    """Stored training images replace generated ones."""

    def decode(self, latents: Tensor) -> Tensor:
        """Return the first training images, repeated if need be, (n, bands, pixels, pixels)."""
        images = self.reserve_images(len(latents))
        sky = galaxies.load(generators.folder(self.definition.data, self.config.data_root))
        stored = crop_middle(sky.noise_free, self.definition.model["pixels"])
        rows = torch.arange(len(images)) % self.definition.train_samples
        images.copy_(torch.from_numpy(stored[rows.numpy()]))
        return images


class LatentsZeroed(GalaxyGeneration):
    """The decoder always gets the latents of the same galaxy."""

    def sample(self, images: int, repetition: int) -> Tensor:
        """Return zeros, (images, latents)."""
        return torch.zeros_like(super().sample(images, repetition))


class NoFlow(GalaxyGeneration):
    """The latents are N(0, 1) noise without the flow."""

    def sample(self, images: int, repetition: int) -> Tensor:
        """Return the noise itself, (images, latents)."""
        return self.draw_noise("generated images", images, repetition)


VARIANTS: Mapping[str, GenerationWorkload] = {
    "random_weights": GenerationWorkload(RandomWeights),
    "one_image_repeated": GenerationWorkload(OneImageRepeated),
    "training_images_replayed": GenerationWorkload(TrainingImagesReplayed),
    "latents_zeroed": GenerationWorkload(LatentsZeroed),
    "no_flow": GenerationWorkload(NoFlow),
}
