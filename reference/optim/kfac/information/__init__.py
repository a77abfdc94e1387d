"""Information matrices of a trained network and what they are good for: see docs/kfac.md."""

from cepheid.reference.optim.kfac.information.blocks import FisherBlocks, fisher_blocks
from cepheid.reference.optim.kfac.information.products import FisherProducts
from cepheid.reference.optim.kfac.information.uses import ElasticPenalty, compute_saliencies

__all__ = [
    "ElasticPenalty",
    "FisherBlocks",
    "FisherProducts",
    "compute_saliencies",
    "fisher_blocks",
]
