"""Stamps of galaxies with their labels, in the order of a run's seed, and their orientations."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from cepheid.reference.data.order import SampleStream, Share
from cepheid.reference.optim.schedules import warmup_then_cosine
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.hyperparameters import AdamHyperparameters
from cepheid.rules.definition import Definition


def crop_middle(images: np.ndarray, pixels: int) -> np.ndarray:
    """Return the inner ``pixels`` × ``pixels`` of images (…, y, x), as a view.

    ``pixels`` and the width of the images are both even or both odd, so that their middle stays in
    the middle.
    """
    first = (images.shape[-1] - pixels) // 2
    inside = slice(first, first + pixels)
    return images[..., inside, inside]


def reorient(
    stamps: np.ndarray, labels: np.ndarray, rows: np.ndarray, orientations: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return copies of ``rows`` of the data in one of the eight orientations of the square each.

    Bit 0 of an orientation flips x, bit 1 flips y (either changes the sign of e2), bit 2 then
    transposes (which changes the sign of e1); the labels (e1, e2) change accordingly. ``stamps``
    are (n, bands, y, x), ``labels`` (n, 2), ``rows`` and ``orientations`` (m,).
    """
    flip_x, flip_y, transpose = ((orientations >> bit) & 1 for bit in range(3))
    signs = np.stack([1 - 2 * transpose, 1 - 2 * (flip_x ^ flip_y)], axis=1)
    return reorient_stamps(stamps, rows, orientations), labels[rows] * signs.astype(labels.dtype)


def reorient_stamps(stamps: np.ndarray, rows: np.ndarray, orientations: np.ndarray) -> np.ndarray:
    """Return the stamps of ``reorient``, (m, bands, y, x)."""
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


Estimate = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Stamps as stored, (n, bands, y, x), to means (n, 2) of e1 and e2 and the lower-triangular scale
matrices (n, 2, 2) of their posterior."""


@dataclass(frozen=True, kw_only=True)
class GalaxyHyperparameters(AdamHyperparameters):
    """The hyperparameters of all galaxy benchmarks.

    A part of the model may have a rate and a clip norm of its own, whose names begin with another
    prefix than ``opt_``.
    """

    opt_end_learning_rate: float
    opt_learning_rate_warmup_samples: int
    opt_learning_rate_decay_samples: int
    opt_gradient_clip_norm: float

    def learning_rate(self, prefix: str, samples: int) -> float:
        """Return the rate of a part of the model in the step that completes ``samples``."""
        return warmup_then_cosine(
            samples,
            base=getattr(self, f"{prefix}base_learning_rate"),
            end=self.opt_end_learning_rate,
            warmup_samples=self.opt_learning_rate_warmup_samples,
            decay_samples=self.opt_learning_rate_decay_samples,
        )

    def clip_norm(self, prefix: str) -> float:
        """Return the largest norm of the gradient of a part."""
        return getattr(self, f"{prefix}gradient_clip_norm")


@dataclass(frozen=True)
class Galaxies:
    """The facts of a galaxy benchmark; ``values`` are its hyperparameters."""

    config: RunConfig
    values: Any

    @classmethod
    def read(cls, config: RunConfig, kind: type[Any] = GalaxyHyperparameters) -> Self:
        """Return the facts of a configuration with hyperparameters of type ``kind``."""
        return cls(config, config.read(kind))

    @property
    def definition(self) -> Definition:
        """The definition of the run."""
        return self.config.definition

    @property
    def bands(self) -> str:
        """The letters of the bands."""
        return self.definition.data["bands"]

    @property
    def network_options(self) -> dict[str, Any]:
        """The keyword arguments of the shape network's constructor, in any framework."""
        model, pixels = self.definition.model, self.definition.data["pixels"]
        chosen = {key: model[key] for key in ("filters", "prelu", "input_scaling")}
        return {"bands": len(self.bands), "pixels": pixels, "targets": self.targets, **chosen}

    @property
    def targets(self) -> int:
        """The number of labels of a galaxy."""
        return len(self.definition.model["targets"])


class Stamps:
    """Stamps and labels of a run, of which ``share`` is this rank's part.

    ``sky`` has everything, ``stamps`` are (n, bands, pixels, pixels), float16 in units of the sky
    noise, and ``labels`` (n, d). The rows to train on come first. ``source`` is the module of the
    dataset (``cepheid.reference.data.galaxies``), which a task does not import.
    """

    def __init__(self, shape: Galaxies, share: Share, sky: Any, source: Any) -> None:
        self.definition, self.share = shape.definition, share
        self.order = SampleStream(shape.config.seed, self.definition.train_samples)
        self.sky, self.stamps, self.source = sky, sky.stamps, source
        targets = self.definition.model["targets"]
        self.labels = np.stack([self.sky.labels[target] for target in targets], axis=1)
        self.train_samples = self.definition.train_samples

    @property
    def evaluation_rows(self) -> np.ndarray:
        """The rows to evaluate on, (n,)."""
        return np.arange(self.train_samples, len(self.labels))

    @property
    def parameters(self) -> Any:
        """The ``SkyParameters`` with which the sky was drawn."""
        return self.source.parameters_of(self.definition.data)

    def read_batch(self, samples: int) -> tuple[np.ndarray, np.ndarray]:
        """Return this rank's share of the batch after ``samples``: stamps and labels (n, …).

        Each is flipped or transposed at random.
        """
        first = self.share.find_first(samples)
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


def make_noise_arrays(shape: Galaxies, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return noise in the shapes and types of stamps and labels, (count, …), for the warm-up."""
    noise = np.random.default_rng(0)  # the warm-up must leave the global generator as it is
    pixels = shape.definition.data["pixels"]
    stamps = noise.normal(size=(count, len(shape.bands), pixels, pixels))
    return stamps.astype(np.float16), np.zeros((count, shape.targets), np.float32)


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
