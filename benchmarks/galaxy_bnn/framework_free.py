"""The parts of galaxy_bnn that do not depend on the framework: draws, prediction, evaluation."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from cepheid.reference.data import galaxies
from cepheid.reference.data.galaxies import PIXEL_DTYPE, SkyParameters
from cepheid.reference.galaxies import shapes
from cepheid.reference.galaxies.shapes import name_metrics
from cepheid.reference.galaxies.stamps import Estimate, GalaxyHyperparameters
from cepheid.rules.definition import Definition


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
        return self.means.mean(0)

    @property
    def epistemic(self) -> np.ndarray:
        """The covariance of the means of the draws, on which they disagree, (n, d, d)."""
        deviations = self.means - self.mean
        return np.einsum("sni,snj->nij", deviations, deviations) / len(deviations)

    @property
    def aleatoric(self) -> np.ndarray:
        """The mean of the covariances of the draws: the noise that they expect, (n, d, d)."""
        return (self.scales @ self.scales.swapaxes(2, 3)).mean(0)

    @property
    def scale(self) -> np.ndarray:
        """Lower-triangular L with L·Lᵀ the covariance of the mixture, (n, d, d)."""
        return np.linalg.cholesky(self.aleatoric + self.epistemic)

    def negative_log_likelihood(self, labels: np.ndarray) -> np.ndarray:
        """Return −log of the mixture's density at ``labels`` (n, d), in nats, (n,)."""
        each = shapes.negative_log_likelihood(self.means, self.scales, labels)
        return math.log(len(each)) - np.logaddexp.reduce(-each, axis=0)

    def epistemic_variance(self) -> np.ndarray:
        """Return the epistemic variance of all targets together, (n,)."""
        return _trace(self.epistemic)

    def epistemic_share(self) -> np.ndarray:
        """Return the share of the epistemic variance in the whole, (n,), from 0 to 1."""
        epistemic = self.epistemic_variance()
        return epistemic / (epistemic + _trace(self.aleatoric))

    def choose(self, rows: slice) -> "Predictive":
        """Return the prediction of some of the galaxies."""
        return Predictive(self.means[:, rows], self.scales[:, rows])

    def sum_metrics(self, labels: np.ndarray) -> np.ndarray:
        """Sum the metrics over galaxies with ``labels`` (n, d), (6,).

        They are squared errors, NLL, inside 68%, inside 95%, galaxies, epistemic share. The regions
        are those of the normal with the mixture's mean and covariance.
        """
        likelihood = self.negative_log_likelihood(labels)
        sums = shapes.sum_metrics(self.mean, self.scale, labels, likelihood)
        return np.append(sums, self.epistemic_share().sum())


def _trace(matrices: np.ndarray) -> np.ndarray:
    return matrices.trace(axis1=-2, axis2=-1)


@dataclass(frozen=True, kw_only=True)
class Hyperparameters(GalaxyHyperparameters):
    """The hyperparameters of galaxy_bnn."""

    weight_sampling: Literal["reparameterisation"]
    kl_divided_by_samples: float


def draw_shifted_stamps(definition: Definition, rank: int, ranks: int) -> np.ndarray:
    """Draw a rank's galaxies of the evaluation set under a brighter sky, float16 (n, bands, y, x).

    They are only the first ones that the definition names.
    """
    model, train = definition.model, definition.train_samples
    count = min(model["shifted_samples"], definition.evaluation_samples)
    rows = range(train + rank, train + count, ranks)
    parameters = galaxies.parameters_of(definition.data)
    return draw_under_noisier_sky(parameters, rows, model["shifted_sky_noise"])


def mix_draws(
    estimate: Estimate, draw_weights: Callable[..., None], draws: int, stamps: np.ndarray
) -> Predictive:
    """Return the mixture of the estimates of stamps, (n, bands, y, x), over draws of the weights.

    ``draw_weights`` takes a purpose and the number of the draw.
    """
    estimates = []
    for draw in range(draws):
        draw_weights("evaluation weights", draw)
        estimates.append(estimate(stamps))
    means, scales = (np.stack(part).astype(np.float64) for part in zip(*estimates, strict=True))
    return Predictive(means, scales)


def sum_mixtures(
    mix: Callable[[np.ndarray], Predictive],
    stamps: np.ndarray,
    labels: np.ndarray,
    shifted_stamps: np.ndarray,
) -> np.ndarray:
    """Return the sums that ``name_mixture_metrics`` takes, (8,), over galaxies with labels (n, d).

    The first of the galaxies are also given as they look under the shifted sky.
    """
    both, count = mix(np.concatenate([stamps, shifted_stamps])), len(stamps)  # fuller batches
    mine, shifted = both.choose(slice(count)), both.choose(slice(count, None))
    unshifted = mine.choose(slice(len(shifted_stamps)))
    variances = [each.epistemic_variance().sum() for each in (shifted, unshifted)]
    return np.append(mine.sum_metrics(labels), variances)


def name_mixture_metrics(sums: Sequence[float], targets: int) -> dict[str, float]:
    """Return the metrics of a predictive mixture from sums over the evaluation set.

    These are the metrics of galaxy_shape, the epistemic share, and the ratio of the epistemic
    variance under the shifted sky to that of the same galaxies without the shift.
    """
    *usual, share, shifted, unshifted = sums
    metrics, count = name_metrics(usual, targets), usual[-1]
    return {
        **metrics,
        "coverage_68_error": abs(metrics["coverage_68"] - 0.68),
        "coverage_95_error": abs(metrics["coverage_95"] - 0.95),
        "epistemic_share": share / count,
        "epistemic_ratio_shifted": shifted / unshifted if unshifted else 0.0,
    }


def draw_under_noisier_sky(parameters: SkyParameters, rows: range, factor: float) -> np.ndarray:
    """Draw galaxies ``rows`` again under a sky whose noise is ``factor`` times as large.

    The galaxies are as bright as before. Returns stamps in units of the usual sky noise, float16
    (rows, bands, y, x).
    """
    brighter = tuple(factor**2 * sky for sky in parameters.sky_electrons)
    noisier = dataclasses.replace(parameters, sky_electrons=brighter)
    return galaxies.draw(noisier, rows)["stamps"] * PIXEL_DTYPE.type(factor)
