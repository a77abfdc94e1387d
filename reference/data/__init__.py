"""Datasets: ``prepare`` makes the dataset of a definition with the generator that it names."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cepheid.rules.errors import UserError


def prepare(
    data: Mapping[str, Any],
    data_root: Path,
    on_progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Prepare the dataset of a definition's ``data`` section and return its folder.

    An interrupted preparation continues, and a finished one returns at once. ``on_progress`` is
    called with the samples done and the total. Raises UserError if the folder is damaged or holds
    something else, or if the disk is full.
    """
    generator, where = _generator(data), folder(data, data_root)
    generator.prepare(where, generator.parameters_of(data), on_progress=on_progress)
    return where


def folder(data: Mapping[str, Any], data_root: Path) -> Path:
    """Return the folder of the dataset of a ``data`` section, prepared or not."""
    name: str = _generator(data).parameters_of(data).folder_name
    return data_root / name


def find_problem(data: Mapping[str, Any], data_root: Path) -> str:
    """Return why ``prepare`` would refuse now, as far as a look at the folders shows; else "".

    Nothing is written.
    """
    generator = _generator(data)
    try:
        where, parameters = folder(data, data_root), generator.parameters_of(data)
    except UserError as error:  # such as a catalogue that is missing
        return str(error)
    if where.exists():
        try:
            generator.prepare(where, parameters)  # it only reads what is prepared
        except UserError as error:
            return str(error)
    elif hasattr(generator, "find_distributed_files"):  # most generators read none
        source = generator.find_distributed_files(where, parameters)
        if source and not source.is_dir():
            return f"{source}: there is no such folder; put or link the distributed files there"
    return ""


def remarks(data: Mapping[str, Any], folder: Path) -> Sequence[str]:
    """Return remarks about a prepared dataset, one per line; most generators have none."""
    generator = _generator(data)
    lines: Sequence[str] = generator.remarks(folder) if hasattr(generator, "remarks") else ()
    return lines


def _generator(data: Mapping[str, Any]) -> Any:
    return importlib.import_module(f"cepheid.reference.data.{data['generator']}")
