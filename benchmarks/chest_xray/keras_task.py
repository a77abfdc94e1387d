"""chest_xray in Keras 3: the mini scale, with ResNet-50.

Keras keeps the variance of batches for the evaluation, PyTorch an unbiased one; else both compute
the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cepheid.benchmarks.chest_xray.hyperparameters import Hyperparameters, find_given_file
from cepheid.benchmarks.resnet50.keras_model import LAST, assign_weights, make_resnet
from cepheid.reference.data import radiographs
from cepheid.reference.data.radiographs import make_cropping
from cepheid.reference.data.radiographs.auroc import measure_quality
from cepheid.reference.keras import images
from cepheid.reference.keras.backend import keras
from cepheid.reference.keras.task import KerasTask, Tensor
from cepheid.reference.machine.ranks import Ranks
from cepheid.reference.run.checkpoint import parse_weights, read_given_file
from cepheid.reference.run.config import RunConfig
from cepheid.rules.errors import UserError

BODY_PREFIX, LAST_PREFIX = "opt_", "opt_last_layer_"


class KerasChestXray(KerasTask):
    """What is found in a radiograph. Images are uint8 (n, y, x, 1), labels float32 (n, 14)."""

    hyperparameter_type: type[Any] = Hyperparameters
    hyperparameters: Hyperparameters
    evaluation_batch = 250
    given_digest: str | None = None
    images: Any
    read_batch = images.read_batch
    set_precision = images.set_precision

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
            **self.config.norm_options,
        )
        if given := find_given_file(self.config):
            content, self.given_digest = read_given_file(given.path, given.digest)
            assign_weights(network, parse_weights(given.path, content))
        return network

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
        images.open_images(self, radiographs)

    def make_noise_arrays(self, count: int) -> tuple[np.ndarray, ...]:
        """Return random images, and labels that alternate."""
        labels = np.indices((count, self.facts["outputs"])).sum(0) % 2
        return images.make_noise(self, count, 1), labels.astype(np.float32)

    def scale_pixels(self, seen: Tensor) -> Tensor:
        """Return images as float32 (n, y, x, 3), three times the same."""
        return images.scale_pixels(seen, self.facts["pixel_mean"], self.facts["pixel_deviation"])

    def compute_loss(self, seen: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy over images and findings, a scalar in nats."""
        logits = self.model(self.scale_pixels(seen), training=True)
        entropies = keras.ops.binary_crossentropy(labels, logits, from_logits=True)
        return keras.ops.mean(entropies)

    def predict(self, seen: Tensor) -> Tensor:
        """Return the logits of images, (n, 14)."""
        return self.model(self.scale_pixels(seen), training=False)

    def evaluate(self) -> dict[str, float]:
        """Return the areas under the ROC curves and their mean."""
        return measure_quality(images.predict_all(self), self.images.labels[self.evaluation_rows])


create = KerasChestXray
