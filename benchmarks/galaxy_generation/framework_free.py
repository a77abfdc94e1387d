"""The parts of galaxy_generation that do not depend on the framework: noise, ranks, quality.

Several ranks share the images of a repetition: each makes a part of them, in the memory of its own
host. All draw the same noise and take their rows of it, so the images do not depend on the number
of ranks. One image is made by the first rank alone, and nobody waits for the others then: what is
timed is the latency of one device.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cepheid.benchmarks.galaxy_generation import quality
from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.galaxies.stamps import crop_middle
from cepheid.reference.machine.ranks import Ranks
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.generation import Times
from cepheid.reference.run.report import Table
from cepheid.rules.errors import UserError

MOST_SHOWN = 24  # galaxies of each kind, in the picture


class GalaxyMaker:
    """Galaxies from noise; that of a framework samples and decodes.

    Images are float32, in units of the sky noise, (n, bands, pixels, pixels) in the host's memory.
    """

    ranks: Any

    def __init__(self, config: RunConfig, ranks: Ranks, weights_digest: str) -> None:
        assert config.definition.generation is not None
        self.config, self.definition, self.ranks = config, config.definition, ranks
        self.counts = config.definition.generation.counts
        self.weights_digest = weights_digest
        most, world_size = max(self.counts), ranks.world_size
        if most % world_size:
            raise UserError(
                f"{most:,} images cannot be shared evenly by {world_size} ranks; "
                f"fix: start a number of ranks that divides {most:,}"
            )

    def share_rows(self, count: int) -> slice:
        """Return the rows of this rank among ``count`` images; the first ranks have one more."""
        least, more = divmod(count, self.ranks.world_size)
        rank: int = self.ranks.rank
        first = rank * least + min(rank, more)
        return slice(first, first + least + (rank < more))

    def draw_normal(self, purpose: str, count: int, repetition: int = 0) -> np.ndarray:
        """Return this rank's rows of N(0, 1) for ``count`` latent vectors, (rows, latents)."""
        random = make_generator(self.config.seed, purpose, count, repetition)
        shape = (count, self.definition.model["latents"])
        noise = random.standard_normal(shape, dtype=np.float32)
        return noise[self.share_rows(count)]

    def read_data(self, source: Any, folder: Path) -> None:
        """Map the noise-free stamps; rows [0, train) are for training, the others are held out.

        ``source`` is ``cepheid.reference.data.galaxies``.
        """
        sky, self.sky_parameters = source.load(folder), source.parameters_of(self.definition.data)
        train = self.definition.train_samples
        assert len(sky.labels) == train + self.definition.evaluation_samples
        stamps = crop_middle(sky.noise_free, self.definition.model["pixels"])
        self.training, self.held_out = stamps[:train], stamps[train:]

    def evaluate(self, images: Any) -> dict[str, float]:
        """Return the metrics of the images of all ranks; see ``quality``.

        ``images`` are this rank's part of them, (n, bands, pixels, pixels).
        """
        own = np.asarray(images)
        self.judged = own[:MOST_SHOWN].copy()
        model, data = self.definition.model, self.definition.data
        parts = self.ranks.all_gather_object(quality.measure(own, model, data))
        metrics = None
        if self.ranks.is_first:
            metrics = quality.compute_metrics(
                quality.join(parts), self.held_out, self.training, model, data
            )
        return self.ranks.broadcast(metrics)

    def project(self, images: Any) -> list[float]:
        """Return the projection of each image of all ranks on one direction, to six digits (T24).

        ``images`` are this rank's part of them, (n, bands, pixels, pixels).
        """
        own = np.asarray(images)
        random = make_generator(self.config.seed, "projection")
        direction = random.standard_normal(own.shape[1:], dtype=np.float32)
        parts = [np.einsum("nbyx,byx->n", part, direction) for part in quality.split(own)]
        numbers = self.ranks.all_gather_object(np.concatenate(parts).tolist())
        return [float(f"{number:.6g}") for part in numbers for number in part]

    def report(self, times: Sequence[Times]) -> Sequence[Table]:
        """Return latencies and rates, and the time for CosmoDC2; see ``quality``."""
        return [quality.make_speed_table(times, self.definition.scale)]

    def pictures(self) -> Any:
        """Return a figure of generated galaxies beside real ones."""
        from cepheid.benchmarks.galaxy_vae import pictures  # astropy is slow to import

        real = self.held_out[:MOST_SHOWN]
        return pictures.draw_generated(real, self.judged, self.sky_parameters)
