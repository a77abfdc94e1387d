"""What the galaxy benchmarks share in Keras: facts, data of the only process, estimates, report.

A task takes the functions of a task as its methods: all that it has to say is on one screen.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cepheid.reference.data import galaxies
from cepheid.reference.data.order import Share
from cepheid.reference.galaxies import science, stamps
from cepheid.reference.galaxies.stamps import Galaxies, Stamps
from cepheid.reference.keras.backend import read
from cepheid.reference.run.report import Table


def read_facts(task: Any) -> Galaxies:
    """Return the facts of the task's configuration."""
    return Galaxies(task.config, task.hyperparameters)


def find_share(task: Any) -> Share:
    """Return the part of this process in the data."""
    ranks = task.ranks
    return Share(ranks.rank, ranks.world_size, ranks.split_batch(task.config.global_batch_size))


def open_stamps(task: Any, kind: type[Stamps] = Stamps) -> None:
    """Map stamps and labels, or other data of the dataset."""
    task.data = kind(task.shape, find_share(task), galaxies.load(task.folder), galaxies)


def make_noise_arrays(task: Any, count: int) -> tuple[np.ndarray, ...]:
    """Return noise in the shapes and types of stamps and labels, (count, …)."""
    return stamps.make_noise_arrays(task.shape, count)


def estimate(task: Any, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means (n, d) and scale matrices (n, d, d) of any number of stamps."""

    def estimate_batch(batch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean, scale = task.traced["predict"](batch)
        return read(mean), read(scale)

    return stamps.estimate_all(estimate_batch, task.evaluation_batch, inputs)


def report(task: Any, on_progress: Callable[[int, int], None]) -> Sequence[Table]:
    """Return shear bias, PSF leakage, and errors by signal-to-noise and size."""
    return science.make_report(task.data, task.estimate, on_progress)


def draw_posteriors(task: Any) -> Any:
    """Return a figure of the estimates of some galaxies, with the means of draws if it has them."""
    from cepheid.reference.galaxies import pictures  # astropy is slow to import

    return pictures.draw_posteriors(task.data, task.estimate, getattr(task, "estimate_draws", None))
