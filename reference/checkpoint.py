"""Saving and loading the state of a task: tensors, numbers and strings; never code."""

import contextlib
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from rules.errors import UserError


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Write ``state`` to ``path``; an existing file is replaced only once the new one is whole.
    Raises UserError where it cannot be written."""
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(dict(state), partial)
        partial.replace(path)
    except (OSError, RuntimeError) as error:  # torch tells of a full disk by a RuntimeError
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{path}: the weights cannot be written ({reason})") from error


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
