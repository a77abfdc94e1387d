"""What a Bayesian network says about a galaxy: a mixture of normals, one for each weight draw."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.galaxy_shape.model import negative_log_likelihood, whitened
from benchmarks.galaxy_shape.science import RADIUS_SQUARED


@dataclass(frozen=True)
class Predictive:
    """The mixture over weight draws with equal shares, for n galaxies and d targets.

    ``means`` is (draws, n, d), ``scales`` (draws, n, d, d), lower triangular; in float64.
    """

    means: Tensor
    scales: Tensor

    @property
    def mean(self) -> Tensor:
        """(n, d)."""
        return self.means.mean(0)

    @property
    def epistemic(self) -> Tensor:
        """What the draws do not agree on: the covariance of their means, (n, d, d)."""
        deviations = self.means - self.mean
        return torch.einsum("sni,snj->nij", deviations, deviations) / len(deviations)

    @property
    def aleatoric(self) -> Tensor:
        """The noise that all draws expect: the mean of their covariances, (n, d, d)."""
        return (self.scales @ self.scales.mT).mean(0)

    @property
    def scale(self) -> Tensor:
        """Lower-triangular L with L·Lᵀ the covariance of the mixture, (n, d, d)."""
        scale: Tensor = torch.linalg.cholesky(self.aleatoric + self.epistemic)
        return scale

    def negative_log_likelihood(self, labels: Tensor) -> Tensor:
        """−log of the mixture's density at ``labels`` (n, d), in nats: (n,)."""
        each = [
            negative_log_likelihood(mean, scale, labels)
            for mean, scale in zip(self.means, self.scales, strict=True)
        ]
        return math.log(len(each)) - torch.logsumexp(-torch.stack(each), dim=0)

    def epistemic_variance(self) -> Tensor:
        """The epistemic variance of all targets together, (n,)."""
        return _trace(self.epistemic)

    def epistemic_share(self) -> Tensor:
        """Its share in the whole variance, (n,), 0 to 1."""
        epistemic = self.epistemic_variance()
        return epistemic / (epistemic + _trace(self.aleatoric))

    def first(self, count: int) -> "Predictive":
        """That of the first ``count`` galaxies."""
        return Predictive(self.means[:, :count], self.scales[:, :count])

    def sums_of_metrics(self, labels: Tensor) -> Tensor:
        """Sums over galaxies: squared errors, NLL, inside 68%, inside 95%, epistemic share,
        galaxies. The regions are those of the normal with the mixture's mean and covariance."""
        radius_squared = whitened(self.mean, self.scale, labels).square().sum(1)
        return torch.stack(
            [
                (self.mean - labels).square().sum(),
                self.negative_log_likelihood(labels).sum(),
                (radius_squared < RADIUS_SQUARED["coverage_68"]).double().sum(),
                (radius_squared < RADIUS_SQUARED["coverage_95"]).double().sum(),
                self.epistemic_share().sum(),
                torch.tensor(float(len(labels)), dtype=torch.float64, device=labels.device),
            ]
        )


def _trace(matrices: Tensor) -> Tensor:
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1)
