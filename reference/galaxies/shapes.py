"""Estimates of a galaxy's shape in any framework: metrics, report and pictures."""

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from cepheid.reference.data import galaxies
from cepheid.reference.galaxies import science
from cepheid.reference.galaxies.coverage import RADIUS_SQUARED
from cepheid.reference.galaxies.task import GalaxyTask
from cepheid.reference.run.report import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class ShapeTask(GalaxyTask):
    """The ellipticity of a galaxy from its stamp, as a bivariate normal or a mixture of them."""

    def network_options(self) -> dict[str, Any]:
        """Return the keyword arguments of the network's constructor, in any framework."""
        model, data = self.definition.model, self.definition.data
        return {
            "bands": len(data["bands"]),
            "pixels": data["pixels"],
            "filters": model["filters"],
            "targets": len(model["targets"]),
            "prelu": model["prelu"],
            "input_scaling": model["input_scaling"],
            "batch_norm_epsilon": model["batch_norm_epsilon"],
            "batch_norm_momentum": model["batch_norm_momentum"],
        }

    def quality(self, sums: Sequence[float]) -> dict[str, float]:
        """Return the metrics from sums over the evaluation set.

        The sums are those of ``sum_metrics``: squared errors, negative log likelihood, galaxies
        inside the 68% and the 95% region, galaxies.
        """
        squares, nll, inside_68, inside_95, count = sums
        return {
            "e_rmse": (squares / count / self.labels.shape[1]) ** 0.5,
            "nll": nll / count,
            "coverage_68": inside_68 / count,
            "coverage_95": inside_95 / count,
        }

    def report(self, on_progress: Callable[[int, int], None]) -> Sequence[Table]:
        """Return shear bias, PSF leakage, and errors by signal-to-noise and size."""
        parameters = galaxies.parameters_of(self.definition.data)
        sky = galaxies.load(self.folder)
        first = self.definition.train_samples
        return science.make_report(parameters, sky, first, self.estimate, on_progress)

    def pictures(self) -> "Figure":
        """Return a figure of the estimates of some galaxies of the evaluation set."""
        from cepheid.reference.galaxies import pictures  # astropy is slow to import

        parameters = galaxies.parameters_of(self.definition.data)
        sky = galaxies.load(self.folder)
        return pictures.draw_posteriors(
            parameters, sky, self.evaluation_rows, self.estimate, self.means_of_draws
        )

    means_of_draws: Callable[[np.ndarray], np.ndarray] | None = None
    """Of a Bayesian network: the mean of each draw of its weights, (draws, n, d) for n stamps."""

    def estimate_batch(self, stamps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means (n, d) and scale matrices (n, d, d) of one evaluation batch of stamps.

        ``stamps`` are (n, bands, pixels, pixels), float16 as stored.
        """
        raise NotImplementedError

    def estimate(self, stamps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means (n, d) and scale matrices (n, d, d) of any number of stamps."""
        means, scales = [], []
        for rows, count in self.iterate_batches(np.arange(len(stamps))):
            mean, scale = self.estimate_batch(stamps[rows])
            means.append(mean[:count])
            scales.append(scale[:count])
        return np.concatenate(means), np.concatenate(scales)


def sum_metrics(
    mean: np.ndarray, scale: np.ndarray, labels: np.ndarray, likelihood: np.ndarray | None = None
) -> np.ndarray:
    """Return the sums that ``ShapeTask.quality`` takes, in float64, (5,).

    The normals have means (n, d) and scale matrices (n, d, d); ``labels`` are (n, d).
    ``likelihood`` (n,) replaces their negative log likelihood for another distribution.
    """
    radius_squared = np.square(whiten(mean, scale, labels)).sum(-1)
    if likelihood is None:
        likelihood = negative_log_likelihood(mean, scale, labels)
    return np.array(
        [
            np.square(mean.astype(np.float64) - labels).sum(),
            likelihood.sum(),
            (radius_squared < RADIUS_SQUARED["coverage_68"]).sum(),
            (radius_squared < RADIUS_SQUARED["coverage_95"]).sum(),
            len(labels),
        ]
    )


def negative_log_likelihood(mean: np.ndarray, scale: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return −log N(labels; mean, L·Lᵀ) in nats and float64, (…,).

    ``mean`` and ``labels`` are (…, d), ``scale`` L is (…, d, d).
    """
    log_determinant = np.log(scale.diagonal(axis1=-2, axis2=-1).astype(np.float64)).sum(-1)
    squares = np.square(whiten(mean, scale, labels)).sum(-1)
    constant = 0.5 * labels.shape[-1] * math.log(2 * math.pi)
    likelihood: np.ndarray = 0.5 * squares + log_determinant + constant
    return likelihood


def whiten(mean: np.ndarray, scale: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return L⁻¹(labels − mean), (…, d), in float64; shapes as ``negative_log_likelihood``."""
    residual = labels.astype(np.float64) - mean
    white: np.ndarray = np.linalg.solve(scale.astype(np.float64), residual[..., None])[..., 0]
    return white
