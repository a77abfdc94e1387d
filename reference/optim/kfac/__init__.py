"""K-FAC, usable on its own by any training loop: see README.md."""

from reference.optim.kfac.observer import sample_cross_entropy
from reference.optim.kfac.options import Options
from reference.optim.kfac.preconditioner import KFAC

__all__ = ["KFAC", "Options", "sample_cross_entropy"]
