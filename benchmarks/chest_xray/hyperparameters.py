"""The hyperparameters of chest_xray."""

from dataclasses import dataclass
from typing import Literal

from cepheid.reference.optim.schedules import warmup_then_cosine
from cepheid.reference.run.hyperparameters import AdamHyperparameters

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
