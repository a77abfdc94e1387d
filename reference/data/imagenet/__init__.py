"""ImageNet and a small replica of it: the generator `imagenet` of definitions.

A definition's ``data.generator`` names this package; ``reference.data`` says what it must provide.
"""

from reference.data.imagenet.images import (
    REAL,
    REMARKS,
    find_distributed_files,
    folder,
    load,
    parameters_of,
    prepare,
    remarks,
)

__all__ = [
    "REAL",
    "REMARKS",
    "find_distributed_files",
    "folder",
    "load",
    "parameters_of",
    "prepare",
    "remarks",
]
