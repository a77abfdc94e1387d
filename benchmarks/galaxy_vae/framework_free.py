"""The parts of galaxy_vae that do not depend on the framework: data, noise, evaluation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cepheid.benchmarks.galaxy_vae import quality
from cepheid.benchmarks.galaxy_vae.quality import Examined
from cepheid.benchmarks.galaxy_vae.shape import FLUX_DIVISOR, Shape
from cepheid.reference.data import galaxies
from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.galaxies import properties
from cepheid.reference.galaxies.task import (
    GalaxyHyperparameters,
    GalaxyTask,
    crop_middle,
    reorient_stamps,
)
from cepheid.reference.machine.ranks import Ranks, SingleProcess
from cepheid.reference.run.report import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Hyperparameters(GalaxyHyperparameters):
    """The hyperparameters of galaxy_vae; the flow has a rate and a clip norm of its own."""

    opt_flow_base_learning_rate: float
    opt_flow_gradient_clip_norm: float
    kl_weight: float


class VaeTask(GalaxyTask):
    """Noise-free stamps to 32 latents and back, and new galaxies from noise.

    Images are in units of the sky noise, (n, bands, pixels, pixels); means, standard deviations,
    noise and latents are (n, latents).
    """

    hyperparameter_type: type[Any] = Hyperparameters
    hyperparameters: Hyperparameters

    def encode(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means and standard deviations of the latents of one evaluation batch."""
        raise NotImplementedError

    def decode(self, latents: np.ndarray) -> np.ndarray:
        """Return the images of one evaluation batch of latents."""
        raise NotImplementedError

    def sample(self, noise: np.ndarray) -> np.ndarray:
        """Return latents of new galaxies from N(0, 1) ``noise``, in the same shape."""
        raise NotImplementedError

    def examine(self, images: np.ndarray, noise: np.ndarray, generated: np.ndarray) -> Examined:
        """Measure one evaluation batch.

        That are the ``images`` of ``read_images``, latents drawn from their posteriors by
        ``noise``, and new galaxies with the latents ``generated``.
        """
        raise NotImplementedError

    def sum_over_ranks(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of ``values`` over all ranks, in the same shape."""
        raise NotImplementedError

    @property
    def shape(self) -> Shape:
        """The sizes of encoder, decoder and flow, in any framework."""
        return Shape.parse(self.definition.model, self.definition.data)

    def open_data(self) -> None:
        """Map the middle of the noise-free stamps; rows [0, train) are for training."""
        super().open_data()
        pixels, observed = self.definition.model["pixels"], self.stamps
        self.stamps = crop_middle(galaxies.load(self.folder).noise_free, pixels)
        if self.is_input_noisy:
            self.observed_stamps = crop_middle(observed, pixels)

    @property
    def is_input_noisy(self) -> bool:
        """Whether the encoder sees the observed stamp and not the noise-free one."""
        return bool(self.definition.model.get("encoder_input") == "noisy")

    def read_images(self, rows: np.ndarray, orientations: np.ndarray | None = None) -> np.ndarray:
        """Return copies of noise-free stamps, (rows, bands, pixels, pixels).

        If the input is noisy, the bands of the observed stamps come before them; ``split_input``
        parts the two.
        """
        stored = [self.observed_stamps, self.stamps] if self.is_input_noisy else [self.stamps]
        if orientations is None:
            parts = [stamps[rows] for stamps in stored]
        else:
            parts = [reorient_stamps(stamps, rows, orientations) for stamps in stored]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def split_input(self, images: Any) -> tuple[Any, Any]:
        """Return what the encoder sees and what the decoder shall give, of ``read_images``."""
        bands = len(self.definition.data["bands"])
        return images[:, :bands], images[:, -bands:]

    def read_batch(self, samples: int) -> tuple[np.ndarray, np.ndarray]:
        """Return images and N(0, 1) to draw latents: this rank's of the batch after ``samples``.

        Each image is flipped or transposed at random.
        """
        batch = self.config.global_batch_size
        count = self.ranks.split_batch(batch)
        first = self.ranks.rank * count
        positions, orientations = self.order.take(samples + first, count)
        images = self.read_images(self.training_rows[positions], orientations)
        normal = self.draw_normal(batch, "latents of step", samples)
        return images, normal[first : first + count]

    def make_noise_arrays(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return noise in the shapes and types of ``read_batch``, for the warm-up."""
        images, _ = super().make_noise_arrays(count)
        model = self.definition.model
        normal = np.zeros((count, model["latents"]), np.float32)
        images = np.abs(crop_middle(images, model["pixels"]))
        return np.concatenate([images] * (1 + self.is_input_noisy), axis=1), normal

    def draw_normal(self, count: int, purpose: str, *keys: int) -> np.ndarray:
        """Draw N(0, 1) for ``count`` latent vectors, (count, latents), the same on every rank."""
        random = make_generator(self.config.seed, purpose, *keys)
        shape = (count, self.definition.model["latents"])
        return random.standard_normal(shape, dtype=np.float32)

    def evaluate(self) -> dict[str, float]:
        """Return the quality of reconstructions, of the flow and of generated galaxies."""
        examined = self.examine_all(self.ranks, self.sum_over_ranks)
        return quality.compute_metrics(examined, self.definition.data["bands"])

    def examine_all(
        self, ranks: Ranks, sum_over_ranks: Callable[[np.ndarray], np.ndarray]
    ) -> Examined:
        """Measure the evaluation set and the same number of new galaxies, shared by ``ranks``."""
        count = len(self.evaluation_rows)
        latent_noise = self.draw_normal(count, "latents of the evaluation")
        generated = self.draw_normal(count, "generated galaxies")
        mine = np.arange(ranks.rank, count, ranks.world_size)
        generated[mine] = self.sample(generated[mine])
        parts = []
        for rows, kept in self.iterate_batches(mine):
            images = self.read_images(self.evaluation_rows[rows])
            parts.append(self.examine(images, latent_noise[rows], generated[rows]).first(kept))
        return quality.join_parts(parts, mine, count, sum_over_ranks)

    def report(self, on_progress: Callable[[int, int], None]) -> Sequence[Table]:
        """Return distances beside those of real galaxies, and errors by band and brightness."""
        on_progress(0, 1)
        process = SingleProcess(self.ranks.framework)
        examined = self.examine_all(process, sum_over_ranks=lambda values: values)
        data, rows = self.definition.data, self.evaluation_rows
        others = self.stamps[self.training_rows[: len(rows)]]
        of_others = properties.measure(others, data["bands"], data["pixel_scale_arcsec"])
        snr = galaxies.load(self.folder).labels["snr"][rows]
        tables = quality.make_report(examined, of_others, snr, data["bands"])
        on_progress(1, 1)
        return tables

    def pictures(self) -> "Figure":
        """Return a figure of real, reconstructed and generated galaxies."""
        from cepheid.benchmarks.galaxy_vae import pictures
        from cepheid.reference.galaxies.pictures import find_nearest  # astropy is slow to import

        sky, rows = galaxies.load(self.folder), self.evaluation_rows
        snr = np.asarray(sky.labels["snr"][rows])
        chosen = rows[find_nearest(snr, pictures.SIGNAL_TO_NOISE)]
        padded = np.resize(chosen, self.evaluation_batch)
        mean, _ = self.encode(self.split_input(self.read_images(padded))[0])
        normal = self.draw_normal(len(padded), "generated galaxies")
        return pictures.draw_panel(
            galaxies.parameters_of(self.definition.data),
            real=self.stamps[chosen],
            reconstructed=self.decode(mean)[: len(chosen)],
            generated=self.decode(self.sample(normal)),
        )


def scale_fluxes(images: np.ndarray, mean_maxima: Sequence[float]) -> np.ndarray:
    """Return what the networks see of images in units of the sky noise, (…, bands, y, x).

    ``model.py`` explains the scaling, and each framework has its own for training.
    """
    scales = np.array(mean_maxima, np.float32)[:, None, None] / np.float32(FLUX_DIVISOR)
    values = images.astype(np.float32) / scales
    with np.errstate(over="ignore", invalid="ignore"):  # of images that are not finite
        scaled: np.ndarray = values / np.sqrt(1 + values * values)
    return scaled
