"""Files of weights: checkpoints, and the file from which a training starts.

A checkpoint is the state of a task as tensors or arrays, numbers and strings; never code. The
suffix decides the format: ``.npz`` holds NumPy arrays and needs no framework; any other suffix is
torch's format.
"""

import hashlib
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, deserialize

from cepheid.rules.digests import UNCONFIRMED
from cepheid.rules.errors import UserError, raise_if_refused
from cepheid.rules.host import NO_WEIGHTS, atomic_path

DAMAGED = (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, zipfile.BadZipFile)
BETWEEN_KEYS = ":"  # Keras has slashes in the names of weights


def save(path: Path, state: Mapping[str, Any]) -> None:
    """Write ``state`` to ``path`` atomically.

    Raises UserError where it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            if path.suffix == ".npz":
                np.savez(file, **_flat(state))
            else:
                import torch

                torch.save(dict(state), file)
    except (OSError, RuntimeError) as error:  # torch tells of a full disk by a RuntimeError
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"{path}: the weights cannot be written ({reason})") from error


def load(path: Path) -> dict[str, Any]:
    """Load the state in ``path``, on the CPU; every value of an ``.npz`` file is an array.

    Raises UserError where it is missing or damaged, or holds anything but tensors and plain values.
    """
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as arrays:
                return _nest(arrays)
        import torch

        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such checkpoint") from error
    except (*DAMAGED, OSError, MemoryError) as error:
        raise_if_refused(path, error)
        reason = str(error).splitlines()[0].partition(". ")[0]  # not how to load it unsafely
        raise UserError(f"{path}: not a checkpoint of this program ({reason})") from error
    if not isinstance(state, dict):
        raise UserError(f"{path}: not a checkpoint of this program (expected a mapping)")
    return state


def _flat(state: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{key}{BETWEEN_KEYS}")
        else:
            flat[prefix + key] = np.asarray(value)
    return flat


def _nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for name, value in flat.items():
        *outer, key = name.split(BETWEEN_KEYS)
        place = state
        for step in outer:
            place = place.setdefault(step, {})
        place[key] = value
    return state


def read_given_file(path: Path, digest: str) -> tuple[bytes, str]:
    """Return the content of a file and its SHA-256, which the definition gives as ``digest``.

    Raises UserError where the file is missing or another one.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{path}: the training starts from these weights, and they cannot be read "
            f"({error.strerror}); fix: put the file there{NO_WEIGHTS}"
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if digest not in (found, UNCONFIRMED):
        raise UserError(
            f"{path}: its SHA-256 is {found}, expected {digest}; "
            "fix: put the file there that the definition names"
        )
    return content, found


TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def parse_weights(path: Path, content: bytes) -> Mapping[str, np.ndarray]:
    """Return the tensors of a file's ``content`` as float32 by their names, of any shape.

    Raises UserError where it is damaged.
    """
    try:
        return {name: _convert(**facts) for name, facts in deserialize(content)}
    except (SafetensorError, KeyError, ValueError) as error:
        raise UserError(f"{path}: not a file of weights for Keras ({error})") from error


def _convert(dtype: str, shape: list[int], data: bytes) -> np.ndarray:
    stored: np.ndarray = np.frombuffer(data, np.dtype(TYPES[dtype])).reshape(shape)
    if dtype == "BF16":  # the upper half of a float32
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32)
