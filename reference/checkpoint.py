"""Saving and loading the state of a task: tensors, numbers and strings; never code."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rules.errors import UserError


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Write ``state`` to ``path``; an existing file is replaced only once the new one is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    torch.save(dict(state), partial)
    partial.replace(path)


def load(path: Path) -> dict[str, Any]:
    """The state in ``path``, on the CPU. Raises UserError where it is missing or damaged, or holds
    anything but tensors and plain values."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such checkpoint") from error
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{path}: not a checkpoint of this program ({reason})") from error
    if not isinstance(state, dict):
        raise UserError(f"{path}: not a checkpoint of this program (expected a mapping)")
    return state
