"""K-FAC, usable on its own by any training loop: see README.md."""

from reference.optim.kfac.options import Options
from reference.optim.kfac.preconditioner import KFAC, sample_cross_entropy

__all__ = ["KFAC", "Options", "sample_cross_entropy"]
