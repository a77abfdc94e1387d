"""Stamps of galaxies with their labels, in the order of a run's seed, for any framework."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from cepheid.reference import data
from cepheid.reference.data import galaxies
from cepheid.reference.data.order import SampleStream, Share
from cepheid.reference.galaxies.task import GalaxyHyperparameters, reorient
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.hyperparameters import parse_hyperparameters
from cepheid.rules.definition import Definition

Estimate = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Galaxies:
    """The facts of a galaxy benchmark; ``values`` are its hyperparameters."""

    config: RunConfig
    values: Any

    @classmethod
    def read(cls, config: RunConfig, kind: type[Any] = GalaxyHyperparameters) -> Self:
        """Return the facts of a configuration with hyperparameters of type ``kind``."""
        return cls(config, parse_hyperparameters(kind, config.hyperparameters))

    @property
    def definition(self) -> Definition:
        """The definition of the run."""
        return self.config.definition

    @property
    def network_options(self) -> dict[str, Any]:
        """The keyword arguments of the shape network's constructor, in any framework."""
        model, facts = self.definition.model, self.definition.data
        names = ("filters", "prelu", "input_scaling", "batch_norm_epsilon", "batch_norm_momentum")
        sizes = {"bands": len(facts["bands"]), "pixels": facts["pixels"]}
        return {**sizes, "targets": len(model["targets"]), **{key: model[key] for key in names}}


class Stamps:
    """Stamps and labels of a run, of which ``share`` is this rank's part.

    ``sky`` has everything, ``stamps`` are (n, bands, pixels, pixels), float16 in units of the sky
    noise, and ``labels`` (n, d). The rows to train on come first.
    """

    def __init__(self, shape: Galaxies, share: Share) -> None:
        self.definition, self.share = shape.definition, share
        self.order = SampleStream(shape.config.seed, self.definition.train_samples)
        self.sky = galaxies.load(data.folder(self.definition.data, shape.config.data_root))
        self.stamps: np.ndarray = self.sky.stamps
        targets = self.definition.model["targets"]
        self.labels = np.stack([self.sky.labels[target] for target in targets], axis=1)
        self.train_samples = self.definition.train_samples

    @property
    def evaluation_rows(self) -> np.ndarray:
        """The rows to evaluate on, (n,)."""
        return np.arange(self.train_samples, len(self.labels))

    def read_batch(self, samples: int) -> tuple[np.ndarray, np.ndarray]:
        """Return this rank's share of the batch after ``samples``: stamps and labels (n, …).

        Each is flipped or transposed at random.
        """
        first = samples + self.share.rank * self.share.batch
        rows, orientations = self.order.take(first, self.share.batch)
        return reorient(self.stamps, self.labels, rows, orientations)

    def list_batches(self, size: int) -> Iterator[tuple[np.ndarray, int]]:
        """Yield this rank's rows of the evaluation set (size,), and how many of them count."""
        return fill_batches(self.evaluation_rows[self.share.rank :: self.share.ranks], size)


def fill_batches(rows: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, int]]:
    """Yield ``rows`` (n,) in batches (size,), each with how many rows of it count.

    The last batch is filled up; cut off the results of the added rows.
    """
    for first in range(0, len(rows), size):
        chosen = rows[first : first + size]
        yield np.resize(chosen, size), len(chosen)


def estimate_all(
    estimate_batch: Estimate, size: int, stamps: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return means (n, d) and scale matrices (n, d, d) of any number of stamps.

    ``estimate_batch`` takes ``size`` stamps at once.
    """
    means, scales = [], []
    for rows, count in fill_batches(np.arange(len(stamps)), size):
        mean, scale = estimate_batch(stamps[rows])
        means.append(mean[:count])
        scales.append(scale[:count])
    return np.concatenate(means), np.concatenate(scales)


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
