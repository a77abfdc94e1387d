"""What galaxy_shape is in any framework: its data, their order and orientation, its schedule."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.galaxy_shape import science
from benchmarks.galaxy_shape.science import RADIUS_SQUARED
from reference.data import galaxies, store
from reference.data.order import SampleStream
from reference.optim.schedules import warmup_then_cosine
from reference.run.config import RunConfig
from reference.run.report import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EVALUATION_BATCH_PER_RANK = 256


class ShapeTask:
    """Stamps and labels as arrays, in the order of the run's seed; the framework's task reads them.

    ``samples`` counts the samples trained.
    """

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.definition = config.definition
        self.folder = galaxies.folder(config.definition.data, config.data_root)
        self.data_digest = store.read_manifest(self.folder).digest
        self.evaluation_batch = EVALUATION_BATCH_PER_RANK
        self.order = SampleStream(config.seed, config.definition.train_samples)
        self.samples = 0

    def layout(self) -> dict[str, Any]:
        """What the network is made of, in any framework: keywords of its constructor."""
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

    def drop_caches(self) -> None:
        """Drop the stamps from the file caches."""
        store.drop_caches(self.folder)

    def open_data(self) -> None:
        """Map stamps and labels; rows [0, train) are for training, the next ones for evaluation."""
        sky = galaxies.load(self.folder)
        train, total = self.definition.train_samples, len(sky.labels)
        assert total == train + self.definition.evaluation_samples
        self.stamps: np.ndarray = sky.stamps
        targets = self.definition.model["targets"]
        self.labels = np.stack([sky.labels[target] for target in targets], axis=1)
        self.training_rows = np.arange(train)
        self.evaluation_rows = np.arange(train, total)

    def read_arrays(
        self, rows: np.ndarray, orientations: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Stamps (rows, bands, pixels, pixels) in units of the sky noise, float16 as stored, and
        labels (rows, d); each in its orientation, see ``reoriented``, if there are any."""
        if orientations is None:
            return self.stamps[rows], self.labels[rows]
        return reoriented(self.stamps, self.labels, rows, orientations)

    def in_batches(self, rows: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
        """``rows`` in batches of one shape, each with how many of it count: the last batch is
        filled up, and what was added is to be cut off again."""
        for first in range(0, len(rows), self.evaluation_batch):
            chosen = rows[first : first + self.evaluation_batch]
            yield np.resize(chosen, self.evaluation_batch), len(chosen)

    def learning_rate(self, base: float) -> float:
        """That of the step that completes ``samples``, where the schedule peaks at ``base``."""
        values = self.config.hyperparameters
        return warmup_then_cosine(
            self.samples,
            base=base,
            end=float(values["opt_end_learning_rate"]),
            warmup_samples=int(values["opt_learning_rate_warmup_samples"]),
            decay_samples=int(values["opt_learning_rate_decay_samples"]),
        )

    def quality(self, sums: Sequence[float]) -> dict[str, float]:
        """The metrics, of sums over the evaluation set: squared errors, negative log likelihood,
        galaxies inside the 68% and the 95% region, galaxies."""
        squares, nll, inside_68, inside_95, count = sums
        return {
            "e_rmse": (squares / count / self.labels.shape[1]) ** 0.5,
            "nll": nll / count,
            "coverage_68": inside_68 / count,
            "coverage_95": inside_95 / count,
        }

    def report(self, on_progress: Callable[[int, int], None]) -> Sequence[Table]:
        """Shear bias, PSF leakage, and errors by signal-to-noise and size; see ``science``."""
        parameters = galaxies.parameters_of(self.definition.data)
        sky = galaxies.load(self.folder)
        first = self.definition.train_samples
        return science.report(parameters, sky, first, self._estimated, on_progress)

    def pictures(self) -> "Figure":
        """What the network says of some galaxies of the evaluation set; see ``pictures``."""
        from benchmarks.galaxy_shape import pictures  # astropy is slow to load and drawn with once

        parameters = galaxies.parameters_of(self.definition.data)
        sky = galaxies.load(self.folder)
        first = self.definition.train_samples
        rows = np.arange(first, first + self.definition.evaluation_samples)
        return pictures.posteriors(parameters, sky, rows, self._estimated, self.means_of_draws)

    means_of_draws: Callable[[np.ndarray], np.ndarray] | None = None
    """Of a Bayesian network: the mean of each draw of its weights, (draws, n, d) for n stamps."""

    def predicted(self, stamps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means (n, d) and scale matrices (n, d, d) of one evaluation batch, as it is stored."""
        raise NotImplementedError

    def _estimated(self, stamps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same of any number of stamps."""
        means, scales = [], []
        for rows, count in self.in_batches(np.arange(len(stamps))):
            mean, scale = self.predicted(stamps[rows])
            means.append(mean[:count])
            scales.append(scale[:count])
        return np.concatenate(means), np.concatenate(scales)


def sums_of_metrics(
    mean: np.ndarray, scale: np.ndarray, labels: np.ndarray, likelihood: np.ndarray | None = None
) -> np.ndarray:
    """What ``ShapeTask.quality`` wants, in float64, of normals with means (n, d) and scale matrices
    (n, d, d); ``likelihood`` (n,) replaces theirs where something else predicts."""
    radius_squared = np.square(whitened(mean, scale, labels)).sum(-1)
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
    """−log N(labels; mean, L·Lᵀ) in nats and float64: (…, d), (…, d, d) and (…, d) to (…,)."""
    log_determinant = np.log(scale.diagonal(axis1=-2, axis2=-1).astype(np.float64)).sum(-1)
    squares = np.square(whitened(mean, scale, labels)).sum(-1)
    constant = 0.5 * labels.shape[-1] * math.log(2 * math.pi)
    likelihood: np.ndarray = 0.5 * squares + log_determinant + constant
    return likelihood


def whitened(mean: np.ndarray, scale: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """L⁻¹(labels − mean), of the same shapes: (…, d)."""
    residual = labels.astype(np.float64) - mean
    white: np.ndarray = np.linalg.solve(scale.astype(np.float64), residual[..., None])[..., 0]
    return white


def reoriented(
    stamps: np.ndarray, labels: np.ndarray, rows: np.ndarray, orientations: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """``rows`` of the data, each in one of the eight orientations of the square, with (e1, e2) to
    match; copies.

    Bit 0 of an orientation flips x, bit 1 flips y (either changes the sign of e2), bit 2 then
    transposes (which changes the sign of e1). Shapes as in ``ShapeTask.read_arrays``.
    """
    flip_x, flip_y, transpose = ((orientations >> bit) & 1 for bit in range(3))
    signs = np.stack([1 - 2 * transpose, 1 - 2 * (flip_x ^ flip_y)], axis=1)
    return turned(stamps, rows, orientations), labels[rows] * signs.astype(labels.dtype)


def turned(stamps: np.ndarray, rows: np.ndarray, orientations: np.ndarray) -> np.ndarray:
    """The stamps of ``reoriented``."""
    copies = np.empty((len(rows), *stamps.shape[1:]), stamps.dtype)
    for target, row, orientation in zip(copies, rows, orientations, strict=True):
        stamp = stamps[row]  # a view: each pixel is read and written once
        if orientation & 1:
            stamp = stamp[:, :, ::-1]
        if orientation & 2:
            stamp = stamp[:, ::-1]
        if orientation & 4:
            stamp = stamp.swapaxes(1, 2)
        target[...] = stamp
    return copies
