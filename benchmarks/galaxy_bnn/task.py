"""galaxy_bnn in PyTorch: what differs from galaxy_shape. Weights are drawn, and evaluated often."""

import dataclasses

import numpy as np
import torch
from torch import Tensor

from benchmarks.galaxy_bnn.estimators import SampleNoise, use_estimator
from benchmarks.galaxy_bnn.model import WeightNoise, kl_divergence, make_bayesian
from benchmarks.galaxy_bnn.predictive import Predictive
from benchmarks.galaxy_shape.model import ShapeNetwork
from benchmarks.galaxy_shape.task import GalaxyShape
from reference.config import RunConfig
from reference.data import galaxies
from reference.data.galaxies import PIXEL_DTYPE, SkyParameters
from reference.distributed import Ranks


def create(config: RunConfig, ranks: Ranks) -> "GalaxyBnn":
    """The task that the timed loop drives."""
    return GalaxyBnn(config, ranks)


class GalaxyBnn(GalaxyShape):
    """e1 and e2 of a galaxy as a mixture of bivariate normals, one for each draw of the weights."""

    def made_network(self) -> ShapeNetwork:
        """That of galaxy_shape with Gaussian weights."""
        network = super().made_network()
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

    def open_data(self) -> None:
        """As galaxy_shape, and this rank's galaxies of the evaluation set under a brighter sky."""
        super().open_data()
        model, train = self.definition.model, self.definition.train_samples
        count = min(model["shifted_samples"], self.definition.evaluation_samples)
        rows = range(train + self.ranks.rank, train + count, self.ranks.world_size)
        parameters = galaxies.parameters_of(self.definition.data)
        self.shifted_stamps = under_noisier_sky(parameters, rows, model["shifted_sky_noise"])

    def loss_and_gradients(self) -> Tensor:
        """As galaxy_shape, with one draw of the weights for the whole global batch."""
        self.weight_noise.draw(self.config.seed, "weights", self.samples)
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

    def evaluate(self) -> dict[str, float]:
        """The predictive mixture's error, likelihood and coverage over the whole evaluation set,
        its epistemic part, and that part under the shifted sky."""
        self.model.eval()
        first = self.definition.train_samples + self.ranks.rank
        mine = self.predictive(self.stamps[first :: self.ranks.world_size])
        labels = torch.from_numpy(self.labels[first :: self.ranks.world_size]).double()
        shifted = self.predictive(self.shifted_stamps)
        unshifted = mine.first(len(self.shifted_stamps))
        sums = torch.stack(
            [
                *mine.sums_of_metrics(labels),
                shifted.epistemic_variance().sum(),
                unshifted.epistemic_variance().sum(),
            ]
        )
        total = self.ranks.sum(sums.to(self.ranks.device)).tolist()
        squares, nll, inside_68, inside_95, share, count, elsewhere, here = total
        coverage_68, coverage_95 = inside_68 / count, inside_95 / count
        return {
            "e_rmse": (squares / count / self.labels.shape[1]) ** 0.5,
            "nll": nll / count,
            "coverage_68": coverage_68,
            "coverage_95": coverage_95,
            "coverage_68_error": abs(coverage_68 - 0.68),
            "coverage_95_error": abs(coverage_95 - 0.95),
            "kl_per_sample": self.kl_per_sample().item(),
            "epistemic_share": share / count,
            "epistemic_ratio_shifted": elsewhere / here if here else 0.0,
        }

    def predictive(self, stamps: np.ndarray) -> Predictive:
        """The mixture over the weight draws of every evaluation, for stamps as they are stored."""
        estimates = []
        for draw in range(self.definition.model["weight_draws"]):
            self.weight_noise.draw(self.config.seed, "evaluation weights", draw)
            estimates.append(super()._estimated(stamps))
        means, scales = (np.stack(part) for part in zip(*estimates, strict=True))
        return Predictive(torch.from_numpy(means).double(), torch.from_numpy(scales).double())

    def means_of_draws(self, stamps: np.ndarray) -> np.ndarray:
        """For the pictures: what each draw expects, (draws, n, d)."""
        return self.predictive(stamps).means.numpy()

    def _estimated(self, stamps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For the report: mean and scale matrix of the mixture."""
        predictive = self.predictive(stamps)
        return predictive.mean.numpy(), predictive.scale.numpy()


def under_noisier_sky(parameters: SkyParameters, rows: range, factor: float) -> np.ndarray:
    """Galaxies ``rows`` again, as bright as ever, where the noise of the sky is ``factor`` times
    as large; in units of the usual sky noise, float16 (rows, bands, y, x)."""
    brighter = tuple(factor**2 * sky for sky in parameters.sky_electrons)
    noisier = dataclasses.replace(parameters, sky_electrons=brighter)
    stamps: np.ndarray = galaxies.draw(noisier, rows)["stamps"] * PIXEL_DTYPE.type(factor)
    return stamps
