"""Datasets: ``prepare`` makes what a definition asks for, whatever generator it names."""

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def prepare(
    data: Mapping[str, Any], data_root: Path, on_progress: Callable[[int, int], None]
) -> Path:
    """Make the dataset of a definition's ``data`` section under ``data_root``, or go on where an
    interrupted preparation stopped, or return at once; returns its folder.

    ``on_progress`` is called with samples done and samples in all. Raises UserError where the
    folder is damaged, holds something else, or the disk is full.
    """
    generator = importlib.import_module(f"reference.data.{data['generator']}")
    folder: Path = generator.prepare(data, data_root, on_progress)
    return folder
