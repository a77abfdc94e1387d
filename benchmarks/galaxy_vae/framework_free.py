"""What galaxy_vae is in any framework: its data, its random numbers, how its quality is found."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.galaxy_shape.framework_free import ShapeTask, turned
from benchmarks.galaxy_vae import properties, quality
from benchmarks.galaxy_vae.quality import Examined
from benchmarks.galaxy_vae.stamps import middle
from reference.data import galaxies
from reference.run.ranks import Ranks, SingleProcess
from reference.run.report import Table
from reference.run.seeding import generator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OVERFLOW = 1e4  # nats and latents beyond it are cut off, by a function of the framework's


class VaeTask(ShapeTask):
    """Noise-free stamps to 32 latents and back, and new galaxies from noise.

    Of galaxy_shape it has the stamps and their order, the schedule, and how to compute. Images are
    in units of the sky noise, (n, bands, pixels, pixels); means, standard deviations, noise and
    latents are (n, latents).
    """

    ranks: Ranks

    def encoded(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations of the latents of one evaluation batch."""
        raise NotImplementedError

    def decoded(self, latents: np.ndarray) -> np.ndarray:
        """The images of one evaluation batch of latents."""
        raise NotImplementedError

    def made(self, noise: np.ndarray) -> np.ndarray:
        """Latents of new galaxies from N(0, 1), as many as there are."""
        raise NotImplementedError

    def examine(self, images: np.ndarray, noise: np.ndarray, made: np.ndarray) -> Examined:
        """All that is measured on one evaluation batch: of images, latents that are drawn by
        ``noise``, and new galaxies of the latents ``made``."""
        raise NotImplementedError

    def over_ranks(self, values: np.ndarray) -> np.ndarray:
        """The sum of ``values`` over all ranks."""
        raise NotImplementedError

    def layout(self) -> dict[str, Any]:
        """As ``ShapeTask``, of encoder, decoder and flow."""
        model, data = self.definition.model, self.definition.data
        return {
            "bands": len(data["bands"]),
            "pixels": model["pixels"],
            "filters": model["filters"],
            "latents": model["latents"],
            "flow_layers": model["flow_layers"],
            "flow_hidden": model["flow_hidden"],
            "prelu": model["prelu"],
            "mean_maxima": model["mean_maxima"],
            "batch_norm_epsilon": model["batch_norm_epsilon"],
            "batch_norm_momentum": model["batch_norm_momentum"],
        }

    def open_data(self) -> None:
        """Map the middle of the noise-free stamps; rows [0, train) are for training, the next ones
        for evaluation."""
        super().open_data()
        self.stamps = middle(galaxies.load(self.folder).noise_free, self.definition.model["pixels"])

    def next_arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """This rank's share of the global batch: images, each flipped or transposed at random, and
        N(0, 1) to draw latents by."""
        batch = self.config.global_batch_size
        count = self.ranks.split_batch(batch)
        first = self.ranks.rank * count
        positions, orientations = self.order.take(self.samples + first, count)
        images = turned(self.stamps, self.training_rows[positions], orientations)
        normal = self.normal(batch, "latents of step", self.samples)
        return images, normal[first : first + count]

    def normal(self, count: int, purpose: str, *keys: int) -> np.ndarray:
        """N(0, 1) for ``count`` latent vectors, the same on every rank."""
        random = generator(self.config.seed, purpose, *keys)
        shape = (count, self.definition.model["latents"])
        return random.standard_normal(shape, dtype=np.float32)

    def evaluate(self) -> dict[str, float]:
        """Quality of reconstructions, of the flow and of generated galaxies; see ``quality``."""
        found = self.examined(self.ranks, self.over_ranks)
        return quality.metrics(found, self.definition.data["bands"])

    def examined(self, ranks: Ranks, over_ranks: Callable[[np.ndarray], np.ndarray]) -> Examined:
        """All that is measured on the evaluation set and on as many new galaxies, on each of
        ``ranks``."""
        count = len(self.evaluation_rows)
        latent_noise = self.normal(count, "latents of the evaluation")
        made = self.normal(count, "generated galaxies")
        mine = np.arange(ranks.rank, count, ranks.world_size)
        made[mine] = self.made(made[mine])
        parts = []
        for rows, kept in self.in_batches(mine):
            images = self.stamps[self.evaluation_rows[rows]]
            parts.append(self.examine(images, latent_noise[rows], made[rows]).first(kept))
        return quality.together(parts, mine, count, over_ranks)

    def report(self, on_progress: Callable[[int, int], None]) -> Sequence[Table]:
        """Distances beside those of real galaxies from others, and errors by band and
        signal-to-noise; see ``quality``."""
        on_progress(0, 1)
        found = self.examined(SingleProcess(self.ranks.framework), over_ranks=lambda values: values)
        data, rows = self.definition.data, self.evaluation_rows
        others = self.stamps[self.training_rows[: len(rows)]]
        of_others = properties.measured(others, data["bands"], data["pixel_scale_arcsec"])
        snr = galaxies.load(self.folder).labels["snr"][rows]
        tables = quality.report(found, of_others, snr, data["bands"])
        on_progress(1, 1)
        return tables

    def pictures(self) -> "Figure":
        """Real, reconstructed and generated galaxies; see ``pictures``."""
        from benchmarks.galaxy_shape.pictures import nearest  # astropy is slow to load
        from benchmarks.galaxy_vae import pictures

        sky, rows = galaxies.load(self.folder), self.evaluation_rows
        snr = np.asarray(sky.labels["snr"][rows])
        chosen = rows[nearest(snr, pictures.SIGNAL_TO_NOISE)]
        padded = np.resize(chosen, self.evaluation_batch)
        mean, _ = self.encoded(self.stamps[padded])
        return pictures.panel(
            galaxies.parameters_of(self.definition.data),
            real=self.stamps[chosen],
            reconstructed=self.decoded(mean)[: len(chosen)],
            generated=self.decoded(self.made(self.normal(len(padded), "generated galaxies"))),
        )
