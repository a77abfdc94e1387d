"""K-FAC, usable on its own by any training loop: see README.md."""

from cepheid.reference.optim.kfac.observer import sample_cross_entropy
from cepheid.reference.optim.kfac.options import Options
from cepheid.reference.optim.kfac.preconditioner import KFAC

__all__ = ["KFAC", "Options", "sample_cross_entropy"]
