"""Translation text from WMT or from a grammar: the generator `wmt` of definitions.

A definition's ``data.generator`` names this package; ``reference.data`` says what it must provide.
"""

from reference.data.wmt.packing import prepare
from reference.data.wmt.pairs import (
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
