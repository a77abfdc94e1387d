"""galaxy_shape in Keras 3; it was published in Keras on TensorFlow."""

from functools import cached_property

from cepheid.benchmarks.galaxy_shape.keras_model import (
    make_posterior,
    make_shape_network,
    negative_log_likelihood,
)
from cepheid.reference.galaxies.shapes import name_metrics, sum_metrics
from cepheid.reference.galaxies.stamps import GalaxyHyperparameters, Stamps
from cepheid.reference.keras import galaxies
from cepheid.reference.keras.backend import keras
from cepheid.reference.keras.task import KerasTask, Tensor


class KerasGalaxyShape(KerasTask):
    """The ellipticity (e1, e2) of a galaxy from its six-band stamp, as a bivariate normal."""

    hyperparameter_type = GalaxyHyperparameters
    data: Stamps
    shape = cached_property(galaxies.read_facts)
    open_data = galaxies.open_stamps
    make_noise_arrays = galaxies.make_noise_arrays
    estimate = galaxies.estimate
    report = galaxies.report
    pictures = galaxies.draw_posteriors

    def make_network(self) -> keras.Model:
        """Return the network of the definition, initialised from Keras' global seed."""
        return make_shape_network(**self.shape.network_options, **self.config.norm_options)

    def compute_loss(self, stamps: Tensor, labels: Tensor) -> Tensor:
        """Return the mean negative log likelihood of labels (n, d), in nats."""
        mean, scale = make_posterior(self.model(stamps, training=True), self.shape.targets)
        return keras.ops.mean(negative_log_likelihood(mean, scale, labels))

    def predict(self, stamps: Tensor) -> tuple[Tensor, Tensor]:
        """Return means (n, d) and scale matrices (n, d, d) for stamps (n, bands, y, x)."""
        return make_posterior(self.model(stamps, training=False), self.shape.targets)

    def evaluate(self) -> dict[str, float]:
        """Return the metrics of the whole evaluation set.

        They are the RMSE of (e1, e2), the mean negative log likelihood in nats, and the share of
        galaxies inside the 68% and 95% regions.
        """
        rows = self.data.evaluation_rows
        mean, scale = self.estimate(self.data.stamps[rows])
        sums = sum_metrics(mean, scale, self.data.labels[rows])
        return name_metrics(sums.tolist(), self.shape.targets)


create = KerasGalaxyShape
