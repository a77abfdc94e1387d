"""Find the dataset of a definition by the generator that it names: prepare it, and where it lies.

This module imports no package that may be missing, and no dataset before one is asked for.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cepheid.rules.errors import UserError


def prepare(
    data: Mapping[str, Any], data_root: Path, on_progress: Callable[[int, int], None] | None = None
) -> Path:
    """Prepare the dataset of a definition's ``data`` section and return its folder.

    An interrupted preparation continues, and a finished one returns at once. ``on_progress`` is
    called with the samples done and the total. Raises UserError if the folder is damaged or holds
    something else, or if the disk is full.
    """
    dataset, where = _find_dataset(data), folder(data, data_root)
    dataset.prepare(where, dataset.parse(data), on_progress=on_progress)
    return where


def folder(data: Mapping[str, Any], data_root: Path) -> Path:
    """Return the folder of the dataset of a ``data`` section, prepared or not."""
    name: str = _find_dataset(data).parse(data).folder_name
    return data_root / name


def find_distributed_files(data: Mapping[str, Any], data_root: Path) -> Path | None:
    """Return where a user puts the distributed files of a ``data`` section; None if it is drawn."""
    return _find_dataset(data).parse(data).find_distributed_files(folder(data, data_root))


def find_problem(data: Mapping[str, Any], data_root: Path) -> str:
    """Return why ``prepare`` would refuse now, as far as a look at the folders shows; else "".

    Nothing is written.
    """
    dataset = _find_dataset(data)
    try:
        where, parameters = folder(data, data_root), dataset.parse(data)
        if where.exists():
            dataset.check(where, parameters)
    except UserError as error:  # such as a catalogue that is missing
        return str(error)
    if where.exists():
        return ""
    source = parameters.find_distributed_files(where)
    if source and not source.exists():
        return f"{source}: there is no such folder; put or link the distributed files there"
    return parameters.find_unreadable(where)


def count_train_samples(data: Mapping[str, Any], data_root: Path) -> int | None:
    """Return the training samples of a prepared dataset, where it may have fewer than asked for."""
    if not _find_dataset(data).parse(data).may_have_fewer:
        return None
    from cepheid.reference.data import store  # needs NumPy

    return store.read_manifest(folder(data, data_root)).parameters["train_samples"]


def remarks(data: Mapping[str, Any], folder: Path) -> Sequence[str]:
    """Return remarks about a prepared dataset, one per line; most generators have none."""
    return _find_dataset(data).remark(folder)


def find_source(data: Mapping[str, Any]) -> Any:
    """Return the module of the dataset of a ``data`` section, with its ``load``."""
    return importlib.import_module(f"cepheid.reference.data.{data['generator']}")


def _find_dataset(data: Mapping[str, Any]) -> Any:
    return find_source(data).DATASET
