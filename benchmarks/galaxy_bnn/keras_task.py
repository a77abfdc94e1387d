"""galaxy_bnn in Keras 3 on TensorFlow, the framework it was published in; in one process."""

from functools import partial
from typing import Any

from benchmarks.galaxy_bnn.framework_free import BayesianTask
from benchmarks.galaxy_bnn.keras_model import (
    GaussianConv2D,
    GaussianDense,
    WeightNoise,
    kl_divergence,
)
from benchmarks.galaxy_shape.keras_model import Tensor
from benchmarks.galaxy_shape.keras_task import KerasGalaxyShape
from reference.keras.backend import keras
from reference.run.config import RunConfig
from reference.run.ranks import Ranks
from rules.errors import UserError

PLAIN = "reparameterisation"


def create(config: RunConfig, ranks: Ranks) -> "KerasGalaxyBnn":
    """The task that the timed loop drives. Raises UserError for an estimator of the open division,
    which is written in PyTorch only."""
    estimator = config.hyperparameters["weight_sampling"]
    if estimator != PLAIN:
        raise UserError(
            f"--set weight_sampling={estimator}: with --framework keras there is {PLAIN} only"
        )
    return KerasGalaxyBnn(config, ranks)


class KerasGalaxyBnn(BayesianTask, KerasGalaxyShape):
    """The network of galaxy_shape with Gaussian weights."""

    def build(self) -> int:
        """As galaxy_shape, and where the noise of the weights is drawn."""
        count = super().build()
        self.weight_noise = WeightNoise(self.model)
        return count

    def network(self, **layers: Any) -> keras.Model:
        """That of galaxy_shape with Gaussian kernels."""
        width = self.definition.model["initial_relative_scale"]
        return super().network(
            convolution=partial(GaussianConv2D, initial_relative_scale=width),
            dense=partial(GaussianDense, initial_relative_scale=width),
            **layers,
        )

    def draw_weights(self, purpose: str, *keys: int) -> None:
        """See ``BayesianTask``."""
        self.weight_noise.draw(self.config.seed, purpose, *keys)

    def step(self) -> Tensor:
        """As galaxy_shape, with one draw of the weights for the whole batch."""
        self.draw_weights("weights", self.samples)
        return super().step()

    def mean_loss(self, stamps: Tensor, labels: Tensor) -> Tensor:
        """Equation 2 of the paper per sample: mean NLL plus the KL divergence over the samples."""
        return super().mean_loss(stamps, labels) + self.kl_per_sample()

    def kl_per_sample(self) -> Tensor:
        """KL divergence of the posterior from the prior, in nats, over the training samples."""
        divergence = kl_divergence(self.model, self.definition.model["prior_scale"])
        return divergence / float(self.config.hyperparameters["kl_divided_by_samples"])

    def evaluate(self) -> dict[str, float]:
        """The predictive mixture's error, likelihood and coverage over the whole evaluation set,
        its epistemic part, and that part under the shifted sky."""
        metrics = self.quality(self.sums_of_metrics().tolist())
        return {**metrics, "kl_per_sample": float(self.kl_per_sample())}
