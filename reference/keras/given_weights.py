"""Given weights for tasks without torch: safetensors as arrays, bfloat16 too."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, deserialize

from cepheid.reference.run.checkpoint import read_given_file
from cepheid.rules.errors import UserError

TYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def read_given_weights(path: Path, digest: str) -> tuple[Mapping[str, np.ndarray], str]:
    """Return the tensors of a file as float32 by their names, of any shape, and its SHA-256.

    ``digest`` is what the SHA-256 must be. Raises UserError where the file is missing, damaged or
    another one.
    """
    content, found = read_given_file(path, digest)
    return parse_weights(path, content), found


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
    values: np.ndarray = stored.astype(np.float32)
    return values
