"""galaxy_bnn in PyTorch: the shape network with Gaussian weights."""

from collections.abc import Callable, Generator
from typing import cast

import torch
from torch import Tensor, nn

from cepheid.benchmarks.galaxy_bnn.estimators import SampleNoise, use_estimator
from cepheid.benchmarks.galaxy_bnn.framework_free import BayesianTask
from cepheid.benchmarks.galaxy_bnn.model import WeightNoise, kl_divergence, make_bayesian
from cepheid.benchmarks.galaxy_shape.model import (
    ShapeNetwork,
    make_channels_last_network,
    negative_log_likelihood,
)
from cepheid.reference.run.config import RunConfig
from cepheid.reference.torch.galaxies import TorchShapeTask
from cepheid.reference.torch.pieces import Piece, Pieces
from cepheid.reference.torch.ranks.distributed import TorchRanks


def create(config: RunConfig, ranks: TorchRanks) -> "GalaxyBnn":
    """Return the task for the timed loop."""
    return GalaxyBnn(config, ranks)


class GalaxyBnn(BayesianTask, TorchShapeTask):
    """The network of galaxy_shape with Gaussian weights."""

    ranks: TorchRanks
    network: Callable[..., nn.Module] = staticmethod(make_channels_last_network)

    def make_network(self) -> nn.Module:
        """Return the network of galaxy_shape with Gaussian weights."""
        network = self.network(**self.network_options())
        make_bayesian(network, self.definition.model["initial_relative_scale"])
        pixels = self.definition.data["pixels"]
        use_estimator(cast(ShapeNetwork, network), self.hyperparameters.weight_sampling, pixels)
        return network

    def build(self) -> int:
        """Make model, optimizer and the noise of the weights; return the number of parameters."""
        count = super().build()
        self.weight_noise = WeightNoise(self.model)
        self.sample_noise = SampleNoise(self.model, self.batch_per_rank)
        return count

    def draw_weights(self, purpose: str, *keys: int) -> None:
        """Draw all weights from their posteriors; see ``BayesianTask``."""
        self.weight_noise.draw(self.config.seed, purpose, *keys)

    def loss_and_gradients(self) -> Tensor:
        """Run forward and backward with one draw of the weights for the whole global batch.

        Return the detached loss, a scalar.
        """
        self.draw_weights("weights", self.samples)
        return super().loss_and_gradients()

    def unite(self, pieces: Pieces, is_alone: bool) -> Generator[Piece, None, None]:
        """Yield the pieces of a step, each after drawing the noise of its own samples."""
        first = self.first_sample
        for piece in super().unite(pieces, is_alone):
            count = len(piece.inputs)
            self.sample_noise.draw(self.config.seed, first, count)
            first += count
            yield piece

    def compute_loss(self, stamps: Tensor, labels: Tensor, /) -> Tensor:
        """Return mean NLL plus KL divergence over the samples, in nats (equation 2 of the paper).

        Stamps are (n, bands, pixels, pixels), labels (n, d).
        """
        return self.compute_likelihood_loss(stamps, labels) + self.kl_per_sample()

    def compute_likelihood_loss(self, stamps: Tensor, labels: Tensor) -> Tensor:
        """Return the mean negative log likelihood alone; shapes as ``compute_loss``."""
        return negative_log_likelihood(*self.predict(stamps), labels).mean()

    def kl_per_sample(self) -> Tensor:
        """Return KL(posterior ‖ prior) over the training samples, a scalar in nats."""
        divergence = kl_divergence(self.model, self.definition.model["prior_scale"])
        return divergence / self.hyperparameters.kl_divided_by_samples

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return the metrics of the predictive mixture over the whole evaluation set.

        They are error, likelihood and coverage, the epistemic part, and the epistemic part under
        the shifted sky.
        """
        self.model.eval()
        sums = self.ranks.sum(self.to_device(self.sum_evaluation()))
        return {**self.quality(sums.tolist()), "kl_per_sample": self.kl_per_sample().item()}
