"""ImageNet and a small replica of it: the generator `imagenet` of definitions.

A definition's ``data.generator`` names this package; ``cepheid.reference.data`` says what it must
provide.
"""

from cepheid.reference.data.image_files.packing import REMARKS
from cepheid.reference.data.image_files.packing import remark_on_kinds as remarks
from cepheid.reference.data.imagenet.images import (
    REAL,
    find_distributed_files,
    load,
    parameters_of,
    prepare,
)

__all__ = [
    "REAL",
    "REMARKS",
    "find_distributed_files",
    "load",
    "parameters_of",
    "prepare",
    "remarks",
]
