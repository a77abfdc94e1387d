"""The hyperparameters of chest_xray, and the file of weights from which a run starts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cepheid.reference.optim.schedules import warmup_then_cosine
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.hyperparameters import AdamHyperparameters
from cepheid.rules import definition

Backbone = Literal["densenet121", "resnet50", "vgg16"]


@dataclass(frozen=True, kw_only=True)
class Hyperparameters(AdamHyperparameters):
    """The hyperparameters of chest_xray."""

    global_batch_size: int
    model_backbone: Backbone
    model_bn_span: int
    opt_last_layer_rate_factor: float
    opt_weight_decay: float
    opt_learning_rate_warmup_steps: int
    opt_learning_rate_decay_samples: int
    data_augmentation: Literal["mirror"]

    def compute_rate(self, samples: int) -> float:
        """Return the learning rate of the step that completes ``samples`` training samples."""
        return warmup_then_cosine(
            samples,
            base=self.opt_base_learning_rate,
            end=0.0,
            warmup_samples=self.opt_learning_rate_warmup_steps * self.global_batch_size,
            decay_samples=self.opt_learning_rate_decay_samples,
        )


FOLDER = definition.BENCHMARKS / "chest_xray" / "weights"  # also for a copy of this file
"""The weights of our own pre-training; files of torchvision lie under the data root."""


@dataclass(frozen=True)
class GivenFile:
    """A file of weights from which a training starts, and its SHA-256."""

    path: Path
    digest: str


def find_given_file(config: RunConfig) -> GivenFile | None:
    """Return the file from which a run starts; None if it starts from random weights."""
    given = config.definition.find_given_weights(config.hyperparameters)
    if given is None:
        return None
    shipped = FOLDER / given["file"]
    path = shipped if shipped.is_file() else config.data_root / given["file"]
    return GivenFile(path, given["digest"])
