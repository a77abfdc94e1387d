"""Where the weights lie from which a training starts. Needs no framework.

``weights/`` of this folder has those of our own pre-training; files of torchvision are fetched by
hand and lie under the data root.
"""

from dataclasses import dataclass
from pathlib import Path

from cepheid.reference.run.config import RunConfig
from cepheid.rules import definition

FOLDER = definition.BENCHMARKS / "chest_xray" / "weights"  # also for a copy of this file


@dataclass(frozen=True)
class GivenFile:
    """A file of weights and its SHA-256."""

    path: Path
    digest: str


def find_given_file(config: RunConfig) -> GivenFile | None:
    """Return the file from which a run starts; None if it starts from random weights."""
    given = config.definition.find_given_weights(config.hyperparameters)
    if given is None:
        return None
    shipped = FOLDER / given["file"]
    path = shipped if shipped.is_file() else config.data_root / given["file"]
    return GivenFile(path, given["digest"])
