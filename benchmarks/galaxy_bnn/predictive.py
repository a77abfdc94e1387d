"""The prediction of a Bayesian network: a mixture of normals, one for each draw of its weights."""

import math
from dataclasses import dataclass

import numpy as np

from cepheid.reference.galaxies import shapes


@dataclass(frozen=True)
class Predictive:
    """The mixture over weight draws with equal shares, for n galaxies and d targets.

    ``means`` is (draws, n, d), ``scales`` (draws, n, d, d), lower triangular; in float64.
    """

    means: np.ndarray
    scales: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """The mean of the mixture, (n, d)."""
        mean: np.ndarray = self.means.mean(0)
        return mean

    @property
    def epistemic(self) -> np.ndarray:
        """The covariance of the means of the draws, on which they disagree, (n, d, d)."""
        deviations = self.means - self.mean
        covariance: np.ndarray = np.einsum("sni,snj->nij", deviations, deviations)
        return covariance / len(deviations)

    @property
    def aleatoric(self) -> np.ndarray:
        """The mean of the covariances of the draws: the noise that they expect, (n, d, d)."""
        covariance: np.ndarray = (self.scales @ self.scales.swapaxes(2, 3)).mean(0)
        return covariance

    @property
    def scale(self) -> np.ndarray:
        """Lower-triangular L with L·Lᵀ the covariance of the mixture, (n, d, d)."""
        return np.linalg.cholesky(self.aleatoric + self.epistemic)

    def negative_log_likelihood(self, labels: np.ndarray) -> np.ndarray:
        """Return −log of the mixture's density at ``labels`` (n, d), in nats, (n,)."""
        each = shapes.negative_log_likelihood(self.means, self.scales, labels)
        likelihood: np.ndarray = math.log(len(each)) - np.logaddexp.reduce(-each, axis=0)
        return likelihood

    def epistemic_variance(self) -> np.ndarray:
        """Return the epistemic variance of all targets together, (n,)."""
        return _trace(self.epistemic)

    def epistemic_share(self) -> np.ndarray:
        """Return the share of the epistemic variance in the whole, (n,), from 0 to 1."""
        epistemic = self.epistemic_variance()
        share: np.ndarray = epistemic / (epistemic + _trace(self.aleatoric))
        return share

    def first(self, count: int) -> "Predictive":
        """Return the prediction of the first ``count`` galaxies."""
        return Predictive(self.means[:, :count], self.scales[:, :count])

    def sum_metrics(self, labels: np.ndarray) -> np.ndarray:
        """Sum the metrics over galaxies with ``labels`` (n, d), (6,).

        They are squared errors, NLL, inside 68%, inside 95%, galaxies, epistemic share. The regions
        are those of the normal with the mixture's mean and covariance.
        """
        likelihood = self.negative_log_likelihood(labels)
        sums = shapes.sum_metrics(self.mean, self.scale, labels, likelihood)
        return np.append(sums, self.epistemic_share().sum())


def _trace(matrices: np.ndarray) -> np.ndarray:
    traces: np.ndarray = matrices.trace(axis1=-2, axis2=-1)
    return traces
