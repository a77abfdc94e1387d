"""Estimates of a galaxy's shape as normals: likelihood, regions and metrics, in numpy."""

import math
from collections.abc import Sequence

import numpy as np

# Squared radii that hold 68% and 95% of a bivariate normal: χ² with 2 degrees of freedom, whose
# distribution function is 1 − exp(−r²/2).
RADIUS_SQUARED = {"coverage_68": -2 * math.log(1 - 0.68), "coverage_95": -2 * math.log(1 - 0.95)}


def name_metrics(sums: Sequence[float], targets: int) -> dict[str, float]:
    """Return the metrics of ``targets`` estimates a galaxy from sums over the evaluation set.

    The sums are those of ``sum_metrics``: squared errors, negative log likelihood, galaxies inside
    the 68% and the 95% region, galaxies.
    """
    squares, nll, inside_68, inside_95, count = sums
    return {
        "e_rmse": (squares / count / targets) ** 0.5,
        "nll": nll / count,
        "coverage_68": inside_68 / count,
        "coverage_95": inside_95 / count,
    }


def sum_metrics(
    mean: np.ndarray, scale: np.ndarray, labels: np.ndarray, likelihood: np.ndarray | None = None
) -> np.ndarray:
    """Return the sums that ``name_metrics`` takes, in float64, (5,).

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
    return 0.5 * squares + log_determinant + constant


def whiten(mean: np.ndarray, scale: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return L⁻¹(labels − mean), (…, d), in float64; shapes as ``negative_log_likelihood``."""
    residual = labels.astype(np.float64) - mean
    return np.linalg.solve(scale.astype(np.float64), residual[..., None])[..., 0]
