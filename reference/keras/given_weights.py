"""Given weights for tasks without torch: safetensors as arrays, bfloat16 too."""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, deserialize

from rules.errors import UserError

TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def read_given_weights(path: Path, digest: str) -> tuple[Mapping[str, np.ndarray], str]:
    """Return the tensors of a file as float32 by their names, of any shape, and its SHA-256.

    ``digest`` is how the SHA-256 begins. Raises UserError where the file is missing, damaged or
    another one.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(
            f"{path}: the training starts from these weights, and they cannot be read "
            f"({error.strerror}); fix: put the file there"
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if not found.startswith(digest):
        raise UserError(
            f"{path}: its SHA-256 begins with {found[: len(digest)]}, expected {digest}; "
            "fix: put the file there that the definition names"
        )
    try:
        tensors = {name: _convert(**facts) for name, facts in deserialize(content)}
    except (SafetensorError, KeyError, ValueError) as error:
        raise UserError(f"{path}: not a file of weights for Keras ({error})") from error
    return tensors, found


def _convert(dtype: str, shape: list[int], data: bytes) -> np.ndarray:
    stored: np.ndarray = np.frombuffer(data, np.dtype(TYPES[dtype])).reshape(shape)
    if dtype == "BF16":  # the upper half of a float32
        stored = (stored.astype(np.uint32) << 16).view(np.float32)
    values: np.ndarray = stored.astype(np.float32)
    return values
