"""galaxy_shape in Keras 3 on TensorFlow, the framework of its publication; in one process."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from cepheid.benchmarks.galaxy_shape.keras_model import (
    make_posterior,
    make_shape_network,
    negative_log_likelihood,
)
from cepheid.reference.galaxies import science, stamps
from cepheid.reference.galaxies.shapes import name_metrics, sum_metrics
from cepheid.reference.galaxies.stamps import Galaxies, GalaxyHyperparameters, Stamps
from cepheid.reference.keras.backend import keras
from cepheid.reference.keras.galaxies import find_share, make_estimate
from cepheid.reference.keras.task import KerasTask, Tensor
from cepheid.reference.machine.ranks import Ranks
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.report import Table


def create(config: RunConfig, ranks: Ranks) -> "KerasGalaxyShape":
    """Return the task for the timed loop."""
    return KerasGalaxyShape(config, ranks)


class KerasGalaxyShape(KerasTask):
    """The ellipticity (e1, e2) of a galaxy from its six-band stamp, as a bivariate normal."""

    hyperparameter_type: type[Any] = GalaxyHyperparameters
    data: Stamps

    @cached_property
    def shape(self) -> Galaxies:
        """The facts of the configuration."""
        return Galaxies(self.config, self.hyperparameters)

    def make_network(self) -> keras.Model:
        """Return the network of the definition, initialised from Keras' global seed."""
        return make_shape_network(**self.shape.network_options, **self.shape.norm_options)

    def open_data(self) -> None:
        """Map stamps and labels."""
        self.data = Stamps(self.shape, find_share(self.shape))

    def make_noise_arrays(self, count: int) -> tuple[np.ndarray, ...]:
        """Return noise in the shapes and types of stamps and labels, (count, …)."""
        return stamps.make_noise_arrays(self.shape, count)

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
        mean, scale = make_estimate(self)(self.data.stamps[rows])
        sums = sum_metrics(mean, scale, self.data.labels[rows])
        return name_metrics(sums.tolist(), self.shape.targets)

    def report(self, on_progress: Callable[[int, int], None]) -> Sequence[Table]:
        """Return shear bias, PSF leakage, and errors by signal-to-noise and size."""
        return science.make_report(self.data, make_estimate(self), on_progress)

    def pictures(self) -> Any:
        """Return a figure of the estimates of some galaxies of the evaluation set."""
        from cepheid.reference.galaxies import pictures  # astropy is slow to import

        return pictures.draw_posteriors(self.data, make_estimate(self))
