"""Information matrices of a trained network and what they are good for: see docs/information.md."""

from cepheid.second_order.information.blocks import FisherBlocks, fisher_blocks
from cepheid.second_order.information.products import FisherProducts
from cepheid.second_order.information.uses import (
    ElasticPenalty,
    LaplacePosterior,
    compute_noise_scale,
    compute_saliencies,
    compute_takeuchi_trace,
)

__all__ = [
    "ElasticPenalty",
    "FisherBlocks",
    "FisherProducts",
    "LaplacePosterior",
    "compute_noise_scale",
    "compute_saliencies",
    "compute_takeuchi_trace",
    "fisher_blocks",
]
