"""The base of the galaxy benchmarks in any framework: stamps, their order, the schedule."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from cepheid.reference.data import galaxies
from cepheid.reference.data.order import SampleStream
from cepheid.reference.machine.ranks import Ranks
from cepheid.reference.optim.schedules import warmup_then_cosine
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.hyperparameters import AdamHyperparameters
from cepheid.reference.run.task import BenchmarkTask


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

    def base_learning_rate(self, prefix: str) -> float:
        """Return the peak of the learning rate of a part."""
        rate: float = getattr(self, f"{prefix}base_learning_rate")
        return rate

    def clip_norm(self, prefix: str) -> float:
        """Return the largest norm of the gradient of a part."""
        norm: float = getattr(self, f"{prefix}gradient_clip_norm")
        return norm


class GalaxyTask(BenchmarkTask):
    """Stamps and labels as arrays, in the order of the run's seed.

    The task of a framework turns them into its tensors.
    """

    hyperparameter_type: type[Any] = GalaxyHyperparameters
    hyperparameters: GalaxyHyperparameters

    def __init__(self, config: RunConfig, ranks: Ranks) -> None:
        super().__init__(config, ranks)
        self.order = SampleStream(config.seed, config.definition.train_samples)

    def open_data(self) -> None:
        """Map stamps and labels."""
        sky = galaxies.load(self.folder)
        assert len(sky.labels) == len(self.training_rows) + len(self.evaluation_rows)
        self.stamps: np.ndarray = sky.stamps
        targets = self.definition.model["targets"]
        self.labels = np.stack([sky.labels[target] for target in targets], axis=1)

    def read_batch(self, samples: int) -> tuple[np.ndarray, np.ndarray]:
        """Return this rank's share of the global batch that follows the first ``samples``.

        Stamps and labels have the shapes of ``read_arrays``; each is flipped or transposed at
        random.
        """
        share = self.ranks.split_batch(self.config.global_batch_size)
        first = samples + self.ranks.rank * share
        positions, orientations = self.order.take(first, share)
        return self.read_arrays(self.training_rows[positions], orientations)

    def read_arrays(
        self, rows: np.ndarray, orientations: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return stamps (rows, bands, pixels, pixels) and labels (rows, d).

        Stamps are in units of the sky noise, float16 as stored. Both are reoriented if there
        are ``orientations`` (rows,); see ``reorient``.
        """
        if orientations is None:
            return self.stamps[rows], self.labels[rows]
        return reorient(self.stamps, self.labels, rows, orientations)

    def make_noise_arrays(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return noise in the shapes and types of ``read_arrays``, for the warm-up."""
        data, model = self.definition.data, self.definition.model
        noise = np.random.default_rng(0)  # the warm-up must leave the global generator as it is
        stamps = noise.normal(size=(count, len(data["bands"]), data["pixels"], data["pixels"]))
        return stamps.astype(np.float16), np.zeros((count, len(model["targets"])), np.float32)

    def iterate_batches(self, rows: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
        """Yield ``rows`` (n,) in batches (evaluation_batch,), each with how many rows of it count.

        The last batch is filled up; cut off the results of the added rows.
        """
        for first in range(0, len(rows), self.evaluation_batch):
            chosen = rows[first : first + self.evaluation_batch]
            yield np.resize(chosen, self.evaluation_batch), len(chosen)

    def learning_rate_of(self, prefix: str) -> float:
        """Return the rate of a part of the model in the step that completes ``samples``."""
        values = self.hyperparameters
        return warmup_then_cosine(
            self.samples,
            base=values.base_learning_rate(prefix),
            end=values.opt_end_learning_rate,
            warmup_samples=values.opt_learning_rate_warmup_samples,
            decay_samples=values.opt_learning_rate_decay_samples,
        )


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
