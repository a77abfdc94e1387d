"""resnet50 in Keras 3, with batch norms over the global batch.

Keras keeps the variance of batches for the evaluation, PyTorch an unbiased one; else both compute
the same.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from cepheid.benchmarks.resnet50.hyperparameters import Hyperparameters, make_schedule
from cepheid.benchmarks.resnet50.keras_model import Lars, make_resnet
from cepheid.reference.data import imagenet
from cepheid.reference.data.image_files.crops import Cropping
from cepheid.reference.keras import images
from cepheid.reference.keras.backend import keras
from cepheid.reference.keras.task import KerasTask, Tensor
from cepheid.reference.machine.ranks import Ranks
from cepheid.reference.run.config import RunConfig
from cepheid.rules.errors import UserError

IMAGE_MEAN, IMAGE_DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # as in ``model``


class KerasResNet50(KerasTask):
    """The class of a photograph. Images are uint8 (n, y, x, 3), labels int64 (n,)."""

    hyperparameter_type: type[Any] = Hyperparameters
    hyperparameters: Hyperparameters
    evaluation_batch = 250
    images: Any
    read_batch = images.read_batch
    set_precision = images.set_precision

    def __init__(self, config: RunConfig, ranks: Ranks) -> None:
        super().__init__(config, ranks)
        values, model = self.hyperparameters, self.definition.model
        is_known = values.model_variant == "v1_5" and model.get("network", "resnet50") == "resnet50"
        if not is_known or values.opt_momentum_form != "scaled" or values.opt_collapse_epoch:
            raise UserError(
                "the task in Keras has network=resnet50, model_variant=v1_5, "
                "opt_momentum_form=scaled and opt_collapse_epoch=0 only; fix: set these, or run "
                "with --framework torch"
            )
        if 0 < values.model_bn_span < config.global_batch_size:
            raise UserError(
                f"model_bn_span={values.model_bn_span}: in Keras a batch norm spans the global "
                "batch; fix: --set model_bn_span=0, or run with --framework torch"
            )
        self.schedule = make_schedule(config)
        crops = {"area": model["crop_area"], "aspect": model["crop_aspect"]}
        self.cropping = Cropping(int(model["pixels"]), model["evaluation_resize_pixels"], **crops)

    def make_network(self) -> keras.Model:
        """Return ResNet-50."""
        model = self.definition.model
        return make_resnet(
            pixels=self.cropping.pixels,
            outputs=int(model["classes"]),
            width=model["width"],
            **self.config.norm_options,
        )

    def make_optimizer(self, prefix: str, variables: Sequence[Any]) -> Any:
        """Return SGD or LARS, built; biases and batch norms are neither decayed nor adapted."""
        values = self.hyperparameters
        optimizer = Lars(
            values.opt_base_learning_rate,  # set at each step
            momentum=values.opt_momentum,
            decay=values.opt_weight_decay,
            trust=values.lars_trust_coefficient if values.opt_name == "lars" else None,
            epsilon=values.lars_epsilon,
        )
        optimizer.build(variables)
        return optimizer

    def learning_rate_of(self, prefix: str) -> float:
        """Return the rate in the step that completes ``samples``."""
        return self.schedule.rate(self.samples)

    def open_data(self) -> None:
        """Map the images with their labels."""
        images.open_images(self, imagenet)

    def make_noise_arrays(self, count: int) -> tuple[np.ndarray, ...]:
        """Return random images and labels."""
        labels = np.arange(count) % int(self.definition.model["classes"])
        return images.make_noise(self, count, 3), labels

    def compute_loss(self, seen: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy of a batch, a scalar in nats, with label smoothing."""
        logits = self.model(scale_pixels(seen), training=True)
        smoothing, classes = self.hyperparameters.label_smoothing, logits.shape[1]
        wanted = keras.ops.one_hot(labels, classes) * (1 - smoothing) + smoothing / classes
        losses = -keras.ops.sum(wanted * keras.ops.log_softmax(logits), axis=1)
        return keras.ops.mean(losses)

    def predict(self, seen: Tensor) -> Tensor:
        """Return the logits of images, (n, classes)."""
        return self.model(scale_pixels(seen), training=False)

    def evaluate(self) -> dict[str, float]:
        """Return top-1 and top-5 accuracy and the mean cross-entropy in nats."""
        logits = images.predict_all(self).astype(np.float64)
        labels = self.images.labels[self.evaluation_rows]
        of_label = logits[np.arange(len(labels)), labels]
        better = (logits > of_label[:, None]).sum(axis=1)
        highest = logits.max(axis=1)
        totals = highest + np.log(np.exp(logits - highest[:, None]).sum(axis=1))
        return {
            "accuracy": float((better < 1).mean()),
            "accuracy_top5": float((better < 5).mean()),
            "loss": float((totals - of_label).mean()),
        }


create = KerasResNet50


def scale_pixels(seen: Tensor) -> Tensor:
    """Return images (n, y, x, 3) as float32 with mean 0 and deviation 1 over ImageNet."""
    mean, deviation = ([255 * each for each in of] for of in (IMAGE_MEAN, IMAGE_DEVIATION))
    return images.scale_pixels(seen, mean, deviation)
