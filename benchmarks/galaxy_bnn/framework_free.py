"""What galaxy_bnn adds to galaxy_shape in any framework: weights are drawn, and evaluated often."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from benchmarks.galaxy_bnn.predictive import Predictive
from benchmarks.galaxy_shape.framework_free import ShapeTask
from reference.data import galaxies
from reference.data.galaxies.stamps import PIXEL_DTYPE, SkyParameters
from reference.run.ranks import Ranks


class BayesianTask(ShapeTask):
    """e1 and e2 of a galaxy as a mixture of bivariate normals, one for each draw of the weights."""

    ranks: Ranks

    def draw_weights(self, purpose: str, *keys: int) -> None:
        """Draw all weights from their posteriors. The same purpose and keys draw the same noise
        again, on every rank."""
        raise NotImplementedError

    def open_data(self) -> None:
        """As galaxy_shape, and this rank's galaxies of the evaluation set under a brighter sky."""
        super().open_data()
        model, train = self.definition.model, self.definition.train_samples
        count = min(model["shifted_samples"], self.definition.evaluation_samples)
        rows = range(train + self.ranks.rank, train + count, self.ranks.world_size)
        parameters = galaxies.parameters_of(self.definition.data)
        self.shifted_stamps = under_noisier_sky(parameters, rows, model["shifted_sky_noise"])

    def sums_of_metrics(self) -> np.ndarray:
        """What ``quality`` wants, summed over this rank's galaxies."""
        first = self.definition.train_samples + self.ranks.rank
        rows = slice(first, None, self.ranks.world_size)
        mine = self.predictive(self.stamps[rows])
        shifted = self.predictive(self.shifted_stamps)
        unshifted = mine.first(len(self.shifted_stamps))
        variances = [each.epistemic_variance().sum() for each in (shifted, unshifted)]
        return np.append(mine.sums_of_metrics(self.labels[rows]), variances)

    def quality(self, sums: Sequence[float]) -> dict[str, float]:
        """The metrics of the predictive mixture, of sums over the evaluation set: those that
        galaxy_shape has, epistemic shares, and the epistemic variance under the shifted sky and of
        the same galaxies as they are."""
        *usual, share, elsewhere, here = sums
        metrics, count = super().quality(usual), usual[-1]
        return {
            **metrics,
            "coverage_68_error": abs(metrics["coverage_68"] - 0.68),
            "coverage_95_error": abs(metrics["coverage_95"] - 0.95),
            "epistemic_share": share / count,
            "epistemic_ratio_shifted": elsewhere / here if here else 0.0,
        }

    def predictive(self, stamps: np.ndarray) -> Predictive:
        """The mixture over the weight draws of every evaluation, for stamps as they are stored."""
        estimates = []
        for draw in range(self.definition.model["weight_draws"]):
            self.draw_weights("evaluation weights", draw)
            estimates.append(super()._estimated(stamps))
        means, scales = (np.stack(part).astype(np.float64) for part in zip(*estimates, strict=True))
        return Predictive(means, scales)

    def means_of_draws(self, stamps: np.ndarray) -> np.ndarray:
        """For the pictures: what each draw expects, (draws, n, d)."""
        return self.predictive(stamps).means

    def _estimated(self, stamps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For the report: mean and scale matrix of the mixture."""
        predictive = self.predictive(stamps)
        return predictive.mean, predictive.scale


def under_noisier_sky(parameters: SkyParameters, rows: range, factor: float) -> np.ndarray:
    """Galaxies ``rows`` again, as bright as ever, where the noise of the sky is ``factor`` times
    as large; in units of the usual sky noise, float16 (rows, bands, y, x)."""
    brighter = tuple(factor**2 * sky for sky in parameters.sky_electrons)
    noisier = dataclasses.replace(parameters, sky_electrons=brighter)
    stamps: np.ndarray = galaxies.draw(noisier, rows)["stamps"] * PIXEL_DTYPE.type(factor)
    return stamps
