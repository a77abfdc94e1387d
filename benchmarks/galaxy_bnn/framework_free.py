"""The parts of galaxy_bnn that do not depend on the framework: drawn weights, evaluation."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cepheid.benchmarks.galaxy_bnn.predictive import Predictive
from cepheid.reference.data import galaxies
from cepheid.reference.data.galaxies import PIXEL_DTYPE, SkyParameters
from cepheid.reference.galaxies.shapes import ShapeTask
from cepheid.reference.galaxies.task import GalaxyHyperparameters


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
        model, train = self.definition.model, self.definition.train_samples
        count = min(model["shifted_samples"], self.definition.evaluation_samples)
        rows = range(train + self.ranks.rank, train + count, self.ranks.world_size)
        parameters = galaxies.parameters_of(self.definition.data)
        self.shifted_stamps = draw_under_noisier_sky(parameters, rows, model["shifted_sky_noise"])

    def sum_evaluation(self) -> np.ndarray:
        """Return the sums that ``quality`` takes, over this rank's galaxies, (8,)."""
        first = self.definition.train_samples + self.ranks.rank
        rows = slice(first, None, self.ranks.world_size)
        mine = self.predict_mixture(self.stamps[rows])
        shifted = self.predict_mixture(self.shifted_stamps)
        unshifted = mine.first(len(self.shifted_stamps))
        variances = [each.epistemic_variance().sum() for each in (shifted, unshifted)]
        return np.append(mine.sum_metrics(self.labels[rows]), variances)

    def quality(self, sums: Sequence[float]) -> dict[str, float]:
        """Return the metrics of the predictive mixture from sums over the evaluation set.

        These are the metrics of galaxy_shape, the epistemic share, and the ratio of the epistemic
        variance under the shifted sky to that of the same galaxies without the shift.
        """
        *usual, share, shifted, unshifted = sums
        metrics, count = super().quality(usual), usual[-1]
        return {
            **metrics,
            "coverage_68_error": abs(metrics["coverage_68"] - 0.68),
            "coverage_95_error": abs(metrics["coverage_95"] - 0.95),
            "epistemic_share": share / count,
            "epistemic_ratio_shifted": shifted / unshifted if unshifted else 0.0,
        }

    def predict_mixture(self, stamps: np.ndarray) -> Predictive:
        """Return the mixture over the weight draws of every evaluation.

        ``stamps`` are (n, bands, pixels, pixels), float16 as stored.
        """
        estimates = []
        for draw in range(self.definition.model["weight_draws"]):
            self.draw_weights("evaluation weights", draw)
            estimates.append(super().estimate(stamps))
        means, scales = (np.stack(part).astype(np.float64) for part in zip(*estimates, strict=True))
        return Predictive(means, scales)

    def means_of_draws(self, stamps: np.ndarray) -> np.ndarray:
        """Return the mean of each draw for the pictures, (draws, n, d), for n stamps."""
        return self.predict_mixture(stamps).means

    def estimate(self, stamps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean (n, d) and scale matrix (n, d, d) of the mixture, for n stamps."""
        predictive = self.predict_mixture(stamps)
        return predictive.mean, predictive.scale


def draw_under_noisier_sky(parameters: SkyParameters, rows: range, factor: float) -> np.ndarray:
    """Draw galaxies ``rows`` again under a sky whose noise is ``factor`` times as large.

    The galaxies are as bright as before. Returns stamps in units of the usual sky noise, float16
    (rows, bands, y, x).
    """
    brighter = tuple(factor**2 * sky for sky in parameters.sky_electrons)
    noisier = dataclasses.replace(parameters, sky_electrons=brighter)
    stamps: np.ndarray = galaxies.draw(noisier, rows)["stamps"] * PIXEL_DTYPE.type(factor)
    return stamps
