"""The hyperparameters of mask_rcnn."""

from dataclasses import dataclass
from typing import Literal

from cepheid.reference.optim.dropped_rate import DroppedRate


@dataclass(frozen=True, kw_only=True)
class Hyperparameters(DroppedRate):
    """The hyperparameters of mask_rcnn; names are those of MLPerf's logs where these have them."""

    opt_name: Literal["sgd"]
    opt_momentum: float
    opt_weight_decay: float
    num_image_candidates: int
    data_augmentation: Literal["mirror", "orientations"]
