"""galaxy_bnn in Keras 3; it was published in Keras on TensorFlow."""

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from cepheid.benchmarks.galaxy_bnn.framework_free import (
    Hyperparameters,
    Predictive,
    draw_shifted_stamps,
    mix_draws,
    name_mixture_metrics,
    sum_mixtures,
)
from cepheid.benchmarks.galaxy_bnn.keras_model import (
    GaussianConv2D,
    GaussianDense,
    WeightNoise,
    kl_divergence,
    list_noise,
)
from cepheid.benchmarks.galaxy_shape.keras_model import (
    make_posterior,
    make_shape_network,
    negative_log_likelihood,
)
from cepheid.reference.galaxies.stamps import Stamps
from cepheid.reference.keras import galaxies
from cepheid.reference.keras.backend import keras
from cepheid.reference.keras.task import KerasTask, Tensor


class KerasGalaxyBnn(KerasTask):
    """The network of galaxy_shape with Gaussian weights."""

    hyperparameter_type = Hyperparameters
    data: Stamps
    shape = cached_property(galaxies.read_facts)
    make_noise_arrays = galaxies.make_noise_arrays
    report = galaxies.report
    pictures = galaxies.draw_posteriors

    def make_network(self) -> keras.Model:
        """Return the network of galaxy_shape with Gaussian kernels."""
        width = self.definition.model["initial_relative_scale"]
        return make_shape_network(
            convolution=partial(GaussianConv2D, initial_relative_scale=width),
            dense=partial(GaussianDense, initial_relative_scale=width),
            **self.shape.network_options,
            **self.config.norm_options,
        )

    def list_variables(self) -> Sequence[Any]:
        """Return all variables with which the computations compute, or that they change."""
        return [*super().list_variables(), *list_noise(self.model)]

    def build(self) -> int:
        """Make model, optimizer and the noise of the weights; return the number of parameters."""
        count = super().build()
        self.weight_noise = WeightNoise(self.model)
        return count

    def draw_weights(self, purpose: str, *keys: int) -> None:
        """Draw all weights from their posteriors.

        The same purpose and keys draw the same noise again.
        """
        self.weight_noise.draw(self.config.seed, purpose, *keys)

    def open_data(self) -> None:
        """Map stamps and labels; draw galaxies of the evaluation set under a brighter sky."""
        galaxies.open_stamps(self)
        self.shifted = draw_shifted_stamps(self.definition, 0, 1)

    def step_on(self, batch: Sequence[Tensor]) -> Tensor:
        """Run one optimizer step with one draw of the weights; return the mean loss, a scalar."""
        self.draw_weights("weights", self.samples)
        return super().step_on(batch)

    def compute_loss(self, stamps: Tensor, labels: Tensor) -> Tensor:
        """Return mean NLL plus KL divergence over the samples, in nats (equation 2 of the paper).

        Stamps are (n, bands, pixels, pixels), labels (n, d).
        """
        mean, scale = make_posterior(self.model(stamps, training=True), self.shape.targets)
        likelihood = keras.ops.mean(negative_log_likelihood(mean, scale, labels))
        return likelihood + self.kl_per_sample()

    def predict(self, stamps: Tensor) -> tuple[Tensor, Tensor]:
        """Return means (n, d) and scale matrices (n, d, d) for stamps (n, bands, y, x)."""
        return make_posterior(self.model(stamps, training=False), self.shape.targets)

    def predict_mixture(self, stamps: np.ndarray) -> Predictive:
        """Return the mixture over the weight draws of an evaluation, for stamps (n, …)."""
        draws = self.definition.model["weight_draws"]
        return mix_draws(partial(galaxies.estimate, self), self.draw_weights, draws, stamps)

    def estimate(self, stamps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean (n, d) and scale matrix (n, d, d) of the mixture, for n stamps."""
        predictive = self.predict_mixture(stamps)
        return predictive.mean, predictive.scale

    def estimate_draws(self, stamps: np.ndarray) -> np.ndarray:
        """Return the mean of each draw of the weights, (draws, n, d), for n stamps."""
        return self.predict_mixture(stamps).means

    def kl_per_sample(self) -> Tensor:
        """Return KL(posterior ‖ prior) over the training samples, a scalar in nats."""
        divergence = kl_divergence(self.model, self.definition.model["prior_scale"])
        return divergence / self.hyperparameters.kl_divided_by_samples

    def evaluate(self) -> dict[str, float]:
        """Return the metrics of the predictive mixture over the whole evaluation set.

        They are error, likelihood and coverage, the epistemic part, and the epistemic part under
        the shifted sky.
        """
        rows, data = self.data.evaluation_rows, self.data
        sums = sum_mixtures(
            self.predict_mixture, data.stamps[rows], data.labels[rows], self.shifted
        )
        metrics = name_mixture_metrics(sums.tolist(), self.shape.targets)
        return {**metrics, "kl_per_sample": float(self.kl_per_sample())}


create = KerasGalaxyBnn
