"""Datasets that are prepared once for all tests of a session, on all of its workers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

from cepheid.reference.data import generators


def prepare(facts: Mapping[str, Any], data_root: Path) -> None:
    """Prepare the dataset of a definition's ``data`` below ``data_root`` if it is not there yet."""
    with FileLock(data_root / ".prepare.lock"):
        generators.prepare(facts, data_root)
