"""K-FAC and information matrices for any training loop in PyTorch: see README.md.

This library needs PyTorch, NumPy and SciPy for ``information``, and nothing else of Cepheid.
"""

from cepheid.second_order.observer import sample_cross_entropy
from cepheid.second_order.options import Options, UseError
from cepheid.second_order.preconditioner import KFAC

__all__ = ["KFAC", "Options", "UseError", "sample_cross_entropy"]
