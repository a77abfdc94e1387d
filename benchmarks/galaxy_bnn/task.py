"""galaxy_bnn in PyTorch: what differs from galaxy_shape."""

import torch
from torch import Tensor

from benchmarks.galaxy_bnn.estimators import SampleNoise, use_estimator
from benchmarks.galaxy_bnn.framework_free import BayesianTask
from benchmarks.galaxy_bnn.model import WeightNoise, kl_divergence, make_bayesian
from benchmarks.galaxy_shape.model import ShapeNetwork
from benchmarks.galaxy_shape.task import GalaxyShape
from reference.run.config import RunConfig
from reference.torch.distributed import TorchRanks


def create(config: RunConfig, ranks: TorchRanks) -> "GalaxyBnn":
    """The task that the timed loop drives."""
    return GalaxyBnn(config, ranks)


class GalaxyBnn(BayesianTask, GalaxyShape):
    """The network of galaxy_shape with Gaussian weights."""

    ranks: TorchRanks

    def make_network(self) -> ShapeNetwork:
        """That of galaxy_shape with Gaussian weights."""
        network = super().make_network()
        assert isinstance(network, ShapeNetwork)
        make_bayesian(network, self.definition.model["initial_relative_scale"])
        estimator = str(self.config.hyperparameters["weight_sampling"])
        use_estimator(network, estimator, self.definition.data["pixels"])
        return network

    def build(self) -> int:
        """As galaxy_shape, and where the noise of the weights is drawn."""
        count = super().build()
        self.weight_noise = WeightNoise(self.model)
        self.sample_noise = SampleNoise(self.model, self.batch_per_rank)
        return count

    def draw_weights(self, purpose: str, *keys: int) -> None:
        """See ``BayesianTask``."""
        self.weight_noise.draw(self.config.seed, purpose, *keys)

    def loss_and_gradients(self) -> Tensor:
        """As galaxy_shape, with one draw of the weights for the whole global batch."""
        self.draw_weights("weights", self.samples)
        self.sample_noise.draw(
            self.config.seed, self.samples + self.ranks.rank * self.batch_per_rank
        )
        return super().loss_and_gradients()

    def _mean_loss(self, stamps: Tensor, labels: Tensor) -> Tensor:
        """Equation 2 of the paper per sample: mean NLL plus the KL divergence over the samples."""
        return super()._mean_loss(stamps, labels) + self.kl_per_sample()

    def kl_per_sample(self) -> Tensor:
        """KL divergence of the posterior from the prior, in nats, over the training samples."""
        divergence = kl_divergence(self.model, self.definition.model["prior_scale"])
        return divergence / float(self.config.hyperparameters["kl_divided_by_samples"])

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """The predictive mixture's error, likelihood and coverage over the whole evaluation set,
        its epistemic part, and that part under the shifted sky."""
        self.model.eval()
        sums = self.ranks.sum(torch.from_numpy(self.sums_of_metrics()).to(self.ranks.device))
        return {**self.quality(sums.tolist()), "kl_per_sample": self.kl_per_sample().item()}
