"""galaxy_shape in Keras 3 on TensorFlow, the framework of its publication; in one process."""

import numpy as np

from cepheid.benchmarks.galaxy_shape.keras_model import (
    make_posterior,
    make_shape_network,
    negative_log_likelihood,
)
from cepheid.reference.galaxies.shapes import sum_metrics
from cepheid.reference.keras.backend import keras
from cepheid.reference.keras.galaxies import KerasShapeTask
from cepheid.reference.keras.task import Tensor
from cepheid.reference.machine.ranks import Ranks
from cepheid.reference.run.config import RunConfig


def create(config: RunConfig, ranks: Ranks) -> "KerasGalaxyShape":
    """Return the task for the timed loop."""
    return KerasGalaxyShape(config, ranks)


class KerasGalaxyShape(KerasShapeTask):
    """The ellipticity (e1, e2) of a galaxy from its six-band stamp, as a bivariate normal."""

    def make_network(self) -> keras.Model:
        """Return the network of the definition, initialised from Keras' global seed."""
        return make_shape_network(**self.network_options())

    def compute_loss(self, stamps: Tensor, labels: Tensor) -> Tensor:
        """Return the mean negative log likelihood of labels (n, d), in nats."""
        mean, scale = make_posterior(self.model(stamps, training=True), self.target_count)
        return keras.ops.mean(negative_log_likelihood(mean, scale, labels))

    def predict(self, stamps: Tensor) -> tuple[Tensor, Tensor]:
        """Return means (n, d) and scale matrices (n, d, d) for stamps (n, bands, y, x)."""
        return make_posterior(self.model(stamps, training=False), self.target_count)

    def evaluate(self) -> dict[str, float]:
        """Return the metrics of the whole evaluation set.

        They are the RMSE of (e1, e2), the mean negative log likelihood in nats, and the share of
        galaxies inside the 68% and 95% regions.
        """
        sums = np.zeros(5)
        for rows, count in self.iterate_batches(self.evaluation_rows):
            stamps, labels = self.read_arrays(rows)
            mean, scale = self.estimate_batch(stamps)
            sums += sum_metrics(mean[:count], scale[:count], labels[:count])
        return self.quality(sums.tolist())
