"""What tasks in Keras share that look at images: data, batches, pixels, logits of an evaluation.

A task takes the functions of a task as its methods; it has ``images``, ``stream`` and ``cropping``.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cepheid.reference.data.image_files.crops import (
    make_evaluation_views,
    make_training_views,
    read_views,
)
from cepheid.reference.data.order import SampleStream
from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.keras.backend import POLICIES, keras, read
from cepheid.reference.keras.galaxies import find_share
from cepheid.reference.keras.task import Tensor


def open_images(task: Any, source: Any) -> None:
    """Map the images of the dataset with the module ``source``, and their labels."""
    task.images = source.load(task.folder)
    task.stream = SampleStream(task.config.seed, task.definition.train_samples)


def read_batch(task: Any, samples: int) -> tuple[np.ndarray, ...]:
    """Return views, uint8 (n, y, x, channels), and labels of this process' part of a batch."""
    share = find_share(task)
    first = share.find_first(samples)
    views = make_training_views(task.images, task.cropping, task.stream, first, share.batch)
    return read_views(task.images, views, task.cropping.pixels), task.images.labels[views.rows]


def make_noise(task: Any, count: int, channels: int) -> np.ndarray:
    """Return random images, uint8 (count, y, x, channels)."""
    shape = count, task.cropping.pixels, task.cropping.pixels, channels
    return make_generator(task.config.seed, "noise").integers(256, size=shape, dtype=np.uint8)


def scale_pixels(images: Tensor, mean: Sequence[float], deviation: Sequence[float]) -> Tensor:
    """Return images (n, y, x, channels) as float32 with mean 0 and deviation 1."""
    levels = keras.ops.cast(images, "float32") - np.array(mean, np.float32)
    return keras.ops.divide(levels, np.array(deviation, np.float32))


def predict_all(task: Any) -> np.ndarray:
    """Return the logits of the whole evaluation set, (rows, outputs)."""
    scores, rows, size = [], task.evaluation_rows, task.evaluation_batch
    for first in range(0, len(rows), size):
        some = rows[first : first + size]
        padded = np.pad(some, (0, size - len(some)), mode="edge")  # one shape is traced
        views = make_evaluation_views(task.images, task.cropping, padded)
        images = read_views(task.images, views, task.cropping.pixels)
        scores.append(read(task.traced["predict"](images))[: len(some)])
    return np.concatenate(scores)


def set_precision(task: Any, precision: str) -> None:
    """Let convolutions compute at ``precision``, fp32 or bf16, in all that is traced later."""
    for layer in task.model.layers:
        if isinstance(layer, keras.layers.Conv2D):
            layer.dtype_policy = keras.DTypePolicy(POLICIES[precision])
