"""The hyperparameters of ssd."""

from dataclasses import dataclass
from typing import Literal

from cepheid.reference.optim.dropped_rate import DroppedRate


@dataclass(frozen=True, kw_only=True)
class Hyperparameters(DroppedRate):
    """The hyperparameters of ssd; the names are those of MLPerf's logs where these have them."""

    model_bn_span: int
    opt_name: Literal["sgd"]
    opt_momentum: float
    opt_weight_decay: float
    max_samples: Literal[1, 50]
    data_augmentation: Literal["ssd_crop_mirror_jitter", "orientations"]
