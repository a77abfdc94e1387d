"""A dataset made for tests: each row is a function of its number."""

from pathlib import Path
from typing import Any

import numpy as np

from cepheid.reference.data import preparation
from cepheid.reference.data.store import Manifest

ROWS, CHUNK_ROWS = 23, 3
PARAMETERS = {"seed": 7, "psf": {"fwhm": 0.65}, "bands": "gr"}
NAMED = np.dtype([("e1", np.float32), ("e2", np.float32)])
LAYOUT = {
    "stamps": (np.dtype(np.float16), (2, 4, 4)),
    "labels": (NAMED, ()),
    "numbers": (np.dtype(np.int64), ()),
}


def draw(rows: range) -> dict[str, np.ndarray]:
    """Some rows; each is a function of its number."""
    numbers = np.array(rows)
    stamps = np.sin(numbers[:, None] * 32 + np.arange(32)).astype(np.float16)
    labels = np.zeros(len(rows), NAMED)
    labels["e1"], labels["e2"] = np.cos(numbers), np.tan(numbers)
    return {"stamps": stamps.reshape(-1, 2, 4, 4), "labels": labels, "numbers": numbers}


def prepare(folder: Path, **changes: Any) -> Manifest:
    arguments: dict[str, Any] = {
        "generator_name": "numbers",
        "parameters": PARAMETERS,
        "arrays": LAYOUT,
        "rows": ROWS,
        "draw": draw,
        "processes": 1,
        "chunk_rows": CHUNK_ROWS,
    }
    return preparation.prepare(folder, **{**arguments, **changes})


def change_byte(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def row_position(path: Path, row: int) -> int:
    array = np.load(path, mmap_mode="r")
    return int(array.offset + row * array[0].nbytes)
