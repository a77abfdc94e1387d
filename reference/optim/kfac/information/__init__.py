"""Information matrices of a trained network and what they are good for: see docs/kfac.md."""

from reference.optim.kfac.information.blocks import FisherBlocks, fisher_blocks
from reference.optim.kfac.information.products import FisherProducts
from reference.optim.kfac.information.uses import ElasticPenalty, compute_saliencies

__all__ = [
    "ElasticPenalty",
    "FisherBlocks",
    "FisherProducts",
    "compute_saliencies",
    "fisher_blocks",
]
