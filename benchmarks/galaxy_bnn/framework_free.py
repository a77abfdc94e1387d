"""The parts of galaxy_bnn that do not depend on the framework: drawn weights, evaluation."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cepheid.benchmarks.galaxy_bnn.predictive import Predictive
from cepheid.reference.data import galaxies
from cepheid.reference.data.galaxies import PIXEL_DTYPE, SkyParameters
from cepheid.reference.galaxies.shapes import ShapeTask
from cepheid.reference.galaxies.stamps import Estimate, name_metrics
from cepheid.reference.galaxies.task import GalaxyHyperparameters
from cepheid.rules.definition import Definition


@dataclass(frozen=True, kw_only=True)
class Hyperparameters(GalaxyHyperparameters):
    """The hyperparameters of galaxy_bnn."""

    weight_sampling: str  # ``use_estimator`` knows the values
    kl_divided_by_samples: float


class BayesianTask(ShapeTask):
    """The ellipticity of a galaxy as a mixture of normals, one for each draw of the weights."""

    hyperparameter_type: type[Any] = Hyperparameters
    hyperparameters: Hyperparameters

    def draw_weights(self, purpose: str, *keys: int) -> None:
        """Draw all weights from their posteriors.

        The same purpose and keys draw the same noise again, on every rank.
        """
        raise NotImplementedError

    def open_data(self) -> None:
        """Open the data; draw this rank's galaxies of the evaluation set under a brighter sky."""
        super().open_data()
        rank, ranks = self.ranks.rank, self.ranks.world_size
        self.shifted_stamps = draw_shifted_stamps(self.definition, rank, ranks)

    def sum_evaluation(self) -> np.ndarray:
        """Return the sums that ``quality`` takes, over this rank's galaxies, (8,)."""
        first = self.definition.train_samples + self.ranks.rank
        rows = slice(first, None, self.ranks.world_size)
        stamps, labels = self.stamps[rows], self.labels[rows]
        return sum_mixtures(self.predict_mixture, stamps, labels, self.shifted_stamps)

    def quality(self, sums: Sequence[float]) -> dict[str, float]:
        """Return the metrics of the predictive mixture from sums over the evaluation set."""
        return name_mixture_metrics(sums, self.labels.shape[1])

    def predict_mixture(self, stamps: np.ndarray) -> Predictive:
        """Return the mixture over the weight draws of every evaluation.

        ``stamps`` are (n, bands, pixels, pixels), float16 as stored.
        """
        draws = self.definition.model["weight_draws"]
        return mix_draws(super().estimate, self.draw_weights, draws, stamps)

    def means_of_draws(self, stamps: np.ndarray) -> np.ndarray:
        """Return the mean of each draw for the pictures, (draws, n, d), for n stamps."""
        return self.predict_mixture(stamps).means

    def estimate(self, stamps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean (n, d) and scale matrix (n, d, d) of the mixture, for n stamps."""
        predictive = self.predict_mixture(stamps)
        return predictive.mean, predictive.scale


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
    mine, shifted = mix(stamps), mix(shifted_stamps)
    unshifted = mine.first(len(shifted_stamps))
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
    stamps: np.ndarray = galaxies.draw(noisier, rows)["stamps"] * PIXEL_DTYPE.type(factor)
    return stamps
