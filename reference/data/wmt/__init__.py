"""Translation text from WMT or from a grammar: the generator `wmt` of definitions.

A definition's ``data.generator`` names this package; ``cepheid.reference.data`` says what it must
provide.
"""

from cepheid.reference.data.wmt.packing import prepare
from cepheid.reference.data.wmt.pairs import (
    find_distributed_files,
    load,
    parameters_of,
    remarks,
)

__all__ = [
    "find_distributed_files",
    "load",
    "parameters_of",
    "prepare",
    "remarks",
]
