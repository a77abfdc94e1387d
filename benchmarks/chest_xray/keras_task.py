"""chest_xray in Keras 3: the mini scale, with ResNet-50.

Keras keeps the variance of batches for the evaluation, PyTorch an unbiased one; else both compute
the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cepheid.benchmarks.chest_xray.given import find_given_file
from cepheid.benchmarks.chest_xray.hyperparameters import Hyperparameters
from cepheid.benchmarks.chest_xray.keras_model import LAST, assign_weights, make_resnet
from cepheid.reference.data import radiographs
from cepheid.reference.data.imagenet.crops import make_evaluation_views, make_training_views
from cepheid.reference.data.order import SampleStream
from cepheid.reference.data.radiographs import make_cropping, read_views
from cepheid.reference.data.radiographs.auroc import measure_quality
from cepheid.reference.data.random_streams import make_generator
from cepheid.reference.keras.backend import POLICIES, keras, read
from cepheid.reference.keras.galaxies import find_share
from cepheid.reference.keras.given_weights import read_given_weights
from cepheid.reference.keras.task import KerasTask, Tensor
from cepheid.reference.machine.ranks import Ranks
from cepheid.reference.run.config import RunConfig
from cepheid.rules.errors import UserError

BODY_PREFIX, LAST_PREFIX = "opt_", "opt_last_layer_"


def create(config: RunConfig, ranks: Ranks) -> "KerasChestXray":
    """Return the task for the timed loop."""
    return KerasChestXray(config, ranks)


class KerasChestXray(KerasTask):
    """What is found in a radiograph. Images are uint8 (n, y, x, 1), labels float32 (n, 14)."""

    hyperparameter_type: type[Any] = Hyperparameters
    hyperparameters: Hyperparameters
    evaluation_batch = 250
    given_digest: str | None = None

    def __init__(self, config: RunConfig, ranks: Ranks) -> None:
        super().__init__(config, ranks)
        values, self.facts = self.hyperparameters, self.definition.model
        if values.model_backbone != "resnet50" or values.opt_weight_decay or values.model_bn_span:
            raise UserError(
                "the task in Keras has model_backbone=resnet50, opt_weight_decay=0 and "
                "model_bn_span=0 only; fix: set these, or run with --framework torch"
            )
        self.pixels = int(self.facts["pixels"])
        self.cropping = make_cropping(self.pixels)

    def make_network(self) -> keras.Model:
        """Return ResNet-50; all layers but the last one start from the given weights."""
        facts = self.facts
        network = make_resnet(
            pixels=self.pixels,
            outputs=facts["outputs"],
            width=facts.get("width", 64),
            epsilon=facts["batch_norm_epsilon"],
            momentum=facts["batch_norm_momentum"],
        )
        if given := find_given_file(self.config):
            state, self.given_digest = read_given_weights(given.path, given.digest)
            assign_weights(network, state)
        return network

    def set_precision(self, precision: str) -> None:
        """Let convolutions compute at ``precision``, fp32 or bf16, in all that is traced later."""
        for layer in self.model.layers:
            if isinstance(layer, keras.layers.Conv2D):
                layer.dtype_policy = keras.DTypePolicy(POLICIES[precision])

    def variables_by_prefix(self) -> Mapping[str, Sequence[Any]]:
        """Return the variables that are given, and those of the last layer."""
        parts: dict[str, list[Any]] = {BODY_PREFIX: [], LAST_PREFIX: []}
        for variable in self.model.trainable_variables:
            is_last = variable.path.startswith(f"{LAST}/")
            parts[LAST_PREFIX if is_last else BODY_PREFIX].append(variable)
        return parts

    def learning_rate_of(self, prefix: str) -> float:
        """Return the rate of a part of the model in the step that completes ``samples``."""
        rate = self.hyperparameters.compute_rate(self.samples)
        return rate * (
            self.hyperparameters.opt_last_layer_rate_factor if prefix == LAST_PREFIX else 1
        )

    def clip_norm(self, prefix: str) -> None:
        """Keep all gradients."""

    def open_data(self) -> None:
        """Map the images with their labels."""
        self.images = radiographs.load(self.folder)
        self.stream = SampleStream(self.config.seed, self.definition.train_samples)

    def read_batch(self, samples: int) -> tuple[np.ndarray, ...]:
        """Return images, half of them mirrored, and labels, of the batch after ``samples``."""
        share = find_share(self)
        first, count = share.find_first(samples), share.batch
        views = make_training_views(self.images, self.cropping, self.stream, first, count)
        return read_views(self.images, views, self.pixels), self.images.labels[views.rows]

    def make_noise_arrays(self, count: int) -> tuple[np.ndarray, ...]:
        """Return random images and labels."""
        random = make_generator(self.config.seed, "noise")
        shape = (count, self.pixels, self.pixels, 1)
        labels = random.integers(2, size=(count, self.facts["outputs"]))
        return random.integers(256, size=shape, dtype=np.uint8), labels.astype(np.float32)

    def scale_pixels(self, images: Tensor) -> Tensor:
        """Return images as float32 (n, y, x, 3), three times the same."""
        mean, deviation = (
            np.array(self.facts[f"pixel_{each}"], np.float32) for each in ("mean", "deviation")
        )
        return keras.ops.divide(keras.ops.cast(images, "float32") - mean, deviation)

    def compute_loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy over images and findings, a scalar in nats."""
        logits = self.model(self.scale_pixels(images), training=True)
        entropies = keras.ops.binary_crossentropy(labels, logits, from_logits=True)
        return keras.ops.mean(entropies)

    def predict(self, images: Tensor) -> Tensor:
        """Return the logits of images, (n, 14)."""
        return self.model(self.scale_pixels(images), training=False)

    def evaluate(self) -> dict[str, float]:
        """Return the areas under the ROC curves and their mean."""
        scores = []
        rows, size = self.evaluation_rows, self.evaluation_batch
        for first in range(0, len(rows), size):
            some = rows[first : first + size]
            padded = np.pad(some, (0, size - len(some)), mode="edge")  # one shape is traced
            views = make_evaluation_views(self.images, self.cropping, padded)
            images = read_views(self.images, views, self.pixels)
            scores.append(read(self.traced["predict"](images))[: len(some)])
        return measure_quality(np.concatenate(scores), self.images.labels[rows])
