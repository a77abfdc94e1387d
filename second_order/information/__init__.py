"""Information matrices of a trained network and what they are good for: see docs/kfac.md."""

from cepheid.second_order.information.blocks import (
    ElasticPenalty,
    FisherBlocks,
    compute_saliencies,
    fisher_blocks,
)
from cepheid.second_order.information.products import FisherProducts

__all__ = [
    "ElasticPenalty",
    "FisherBlocks",
    "FisherProducts",
    "compute_saliencies",
    "fisher_blocks",
]
