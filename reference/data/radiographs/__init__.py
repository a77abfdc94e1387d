"""Radiographs of chests with fourteen findings: the generator `radiographs` of definitions.

A definition's ``data.generator`` names this package; ``cepheid.reference.data`` says what it must
provide.
"""

from cepheid.reference.data.radiographs.findings import FINDINGS, METRICS
from cepheid.reference.data.radiographs.images import (
    REAL,
    RadiographParameters,
    Radiographs,
    find_distributed_files,
    load,
    parameters_of,
    prepare,
    remarks,
)

__all__ = [
    "FINDINGS",
    "METRICS",
    "REAL",
    "RadiographParameters",
    "Radiographs",
    "find_distributed_files",
    "load",
    "parameters_of",
    "prepare",
    "remarks",
]
