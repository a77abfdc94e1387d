"""COCO 2017, photographs with boxes round their objects: the generator `coco` of definitions.

A definition's ``data.generator`` names this package; ``cepheid.reference.data`` says what it must
provide.
"""

from cepheid.reference.data.coco.photographs import (
    REAL,
    CocoParameters,
    Photographs,
    find_distributed_files,
    load,
    parameters_of,
    prepare,
    remarks,
)
from cepheid.reference.data.coco.truth import make_truth

__all__ = [
    "REAL",
    "CocoParameters",
    "Photographs",
    "find_distributed_files",
    "load",
    "make_truth",
    "parameters_of",
    "prepare",
    "remarks",
]
