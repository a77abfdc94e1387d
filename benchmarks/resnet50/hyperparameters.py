"""The hyperparameters of resnet50, and those that kfac has too, with their learning-rate schedule.

``Literal`` fields list what this implementation knows, in the open division too.
"""

from dataclasses import dataclass
from typing import Literal

from cepheid.reference.optim.schedules import MomentumForm, Schedule
from cepheid.reference.run.config import RunConfig


@dataclass(frozen=True, kw_only=True)
class ImageHyperparameters:
    """The hyperparameters that resnet50 and kfac share."""

    model_variant: Literal["v1_5", "d"]
    model_bn_span: int
    opt_momentum: float
    opt_momentum_form: MomentumForm
    opt_weight_decay: float
    opt_base_learning_rate: float
    opt_end_learning_rate: float
    opt_learning_rate_warmup_epochs: float
    opt_learning_rate_decay_schedule: Literal["polynomial", "cosine", "step"]
    opt_learning_rate_decay_poly_power: float
    opt_learning_rate_decay_epochs: float
    label_smoothing: float


@dataclass(frozen=True, kw_only=True)
class Hyperparameters(ImageHyperparameters):
    """The hyperparameters of resnet50."""

    opt_name: Literal["sgd", "lars"]
    opt_momentum_correction: bool
    opt_learning_rate_for_batch: int
    opt_collapse_epoch: int
    opt_collapse_length_epochs: int
    lars_trust_coefficient: float
    lars_epsilon: float


def make_schedule(config: RunConfig) -> Schedule:
    """Return warm-up and decay in samples; the hyperparameters give both in epochs."""
    values = config.read(Hyperparameters)
    epoch = config.definition.train_samples
    base = peak = values.opt_base_learning_rate
    start = 0.0
    if for_batch := values.opt_learning_rate_for_batch:
        # Goyal et al. 2017, arXiv:1706.02677, section 2.1.
        peak, start = base * config.global_batch_size / for_batch, base
    return Schedule(
        peak=peak,
        end=values.opt_end_learning_rate,
        start=start,
        warmup_samples=values.opt_learning_rate_warmup_epochs * epoch,
        decay_samples=values.opt_learning_rate_decay_epochs * epoch,
        decay=values.opt_learning_rate_decay_schedule,
        power=values.opt_learning_rate_decay_poly_power,
        collapse_samples=values.opt_collapse_epoch * epoch,
        collapse_length_samples=values.opt_collapse_length_epochs * epoch,
    )
