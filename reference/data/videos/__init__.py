"""Short videos, drawn or read: the generator `videos` of definitions.

A definition's ``data.generator`` names this package; ``cepheid.reference.data`` says what it must
provide.
"""

from cepheid.reference.data.videos.clips import (
    Clips,
    VideoParameters,
    find_distributed_files,
    load,
    parameters_of,
    prepare,
)

__all__ = [
    "Clips",
    "VideoParameters",
    "find_distributed_files",
    "load",
    "parameters_of",
    "prepare",
]
