"""What the galaxy benchmarks share in Keras: the data of the only process, and estimates."""

from functools import partial

import numpy as np

from cepheid.reference.data.order import Share
from cepheid.reference.galaxies.stamps import Estimate, Galaxies, estimate_all
from cepheid.reference.keras.backend import tf
from cepheid.reference.keras.task import KerasTask


def find_share(shape: Galaxies) -> Share:
    """Return the part of the only process in the data: all of it."""
    return Share(0, 1, shape.config.global_batch_size)


def make_estimate(task: KerasTask) -> Estimate:
    """Return what estimates means (n, d) and scale matrices (n, d, d) of any number of stamps.

    The task predicts both for a batch of an evaluation.
    """

    def estimate_batch(stamps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean, scale = task.traced["predict"](tf.constant(stamps))
        return mean.numpy(), scale.numpy()

    return partial(estimate_all, estimate_batch, task.evaluation_batch)
