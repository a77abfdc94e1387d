"""galaxy_bnn in Keras 3 on TensorFlow, the framework of its publication; in one process."""

from collections.abc import Sequence
from functools import partial

from cepheid.benchmarks.galaxy_bnn.framework_free import BayesianTask
from cepheid.benchmarks.galaxy_bnn.keras_model import (
    GaussianConv2D,
    GaussianDense,
    WeightNoise,
    kl_divergence,
)
from cepheid.benchmarks.galaxy_shape.keras_model import (
    make_posterior,
    make_shape_network,
    negative_log_likelihood,
)
from cepheid.reference.keras.backend import keras
from cepheid.reference.keras.galaxies import KerasShapeTask
from cepheid.reference.keras.task import Tensor
from cepheid.reference.machine.ranks import Ranks
from cepheid.reference.run.config import RunConfig
from cepheid.rules.errors import UserError

PLAIN = "reparameterisation"


def create(config: RunConfig, ranks: Ranks) -> "KerasGalaxyBnn":
    """Return the task for the timed loop.

    Raises UserError for an estimator of the open division, which is written in PyTorch only.
    """
    estimator = config.hyperparameters["weight_sampling"]
    if estimator != PLAIN:
        raise UserError(
            f"--set weight_sampling={estimator}: with --framework keras there is {PLAIN} only"
        )
    return KerasGalaxyBnn(config, ranks)


class KerasGalaxyBnn(BayesianTask, KerasShapeTask):
    """The network of galaxy_shape with Gaussian weights."""

    def make_network(self) -> keras.Model:
        """Return the network of galaxy_shape with Gaussian kernels."""
        width = self.definition.model["initial_relative_scale"]
        return make_shape_network(
            convolution=partial(GaussianConv2D, initial_relative_scale=width),
            dense=partial(GaussianDense, initial_relative_scale=width),
            **self.network_options(),
        )

    def build(self) -> int:
        """Make model, optimizer and the noise of the weights; return the number of parameters."""
        count = super().build()
        self.weight_noise = WeightNoise(self.model)
        return count

    def draw_weights(self, purpose: str, *keys: int) -> None:
        """Draw all weights from their posteriors; see ``BayesianTask``."""
        self.weight_noise.draw(self.config.seed, purpose, *keys)

    def step_on(self, batch: Sequence[Tensor]) -> Tensor:
        """Run one optimizer step with one draw of the weights; return the mean loss, a scalar."""
        self.draw_weights("weights", self.samples)
        return super().step_on(batch)

    def compute_loss(self, stamps: Tensor, labels: Tensor) -> Tensor:
        """Return mean NLL plus KL divergence over the samples, in nats (equation 2 of the paper).

        Stamps are (n, bands, pixels, pixels), labels (n, d).
        """
        mean, scale = make_posterior(self.model(stamps, training=True), self.target_count)
        likelihood = keras.ops.mean(negative_log_likelihood(mean, scale, labels))
        return likelihood + self.kl_per_sample()

    def predict(self, stamps: Tensor) -> tuple[Tensor, Tensor]:
        """Return means (n, d) and scale matrices (n, d, d) for stamps (n, bands, y, x)."""
        return make_posterior(self.model(stamps, training=False), self.target_count)

    def kl_per_sample(self) -> Tensor:
        """Return KL(posterior ‖ prior) over the training samples, a scalar in nats."""
        divergence = kl_divergence(self.model, self.definition.model["prior_scale"])
        return divergence / self.hyperparameters.kl_divided_by_samples

    def evaluate(self) -> dict[str, float]:
        """Return the metrics of the predictive mixture over the whole evaluation set.

        They are error, likelihood and coverage, the epistemic part, and the epistemic part under
        the shifted sky.
        """
        metrics = self.quality(self.sum_evaluation().tolist())
        return {**metrics, "kl_per_sample": float(self.kl_per_sample())}
