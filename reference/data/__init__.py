"""Datasets: ``prepare`` makes what a definition asks for, whatever generator it names."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def prepare(
    data: Mapping[str, Any],
    data_root: Path,
    on_progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Make the dataset of a definition's ``data`` section under ``data_root``, or go on where an
    interrupted preparation stopped, or return at once; returns its folder.

    ``on_progress`` is called with samples done and samples in all. Raises UserError where the
    folder is damaged, holds something else, or the disk is full.
    """
    generator, where = _generator(data), folder(data, data_root)
    generator.prepare(where, generator.parameters_of(data), on_progress=on_progress)
    return where


def folder(data: Mapping[str, Any], data_root: Path) -> Path:
    """Where the dataset of a definition's ``data`` section is, prepared or not."""
    where: Path = _generator(data).folder(data, data_root)
    return where


def remarks(data: Mapping[str, Any], folder: Path) -> Sequence[str]:
    """What a generator has to say about its prepared dataset, a line each; most have nothing."""
    generator = _generator(data)
    lines: Sequence[str] = generator.remarks(folder) if hasattr(generator, "remarks") else ()
    return lines


def _generator(data: Mapping[str, Any]) -> Any:
    return importlib.import_module(f"reference.data.{data['generator']}")
