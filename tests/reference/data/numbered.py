"""A dataset made for tests: each row is a function of its number."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cepheid.reference.data import preparation
from cepheid.reference.data.columns import Fixed
from cepheid.reference.data.preparation import Contents, Draw
from cepheid.reference.data.store import Manifest

ROWS, CHUNK_ROWS = 23, 3
PARAMETERS = {"seed": 7, "psf": {"fwhm": 0.65}, "bands": "gr"}
NAMED = np.dtype([("e1", np.float32), ("e2", np.float32)])
LAYOUT = {
    "stamps": Fixed(np.dtype(np.float16), (2, 4, 4)),
    "labels": Fixed(NAMED),
    "numbers": Fixed(np.dtype(np.int64)),
}


def draw(rows: range) -> dict[str, np.ndarray]:
    """Some rows; each is a function of its number."""
    numbers = np.array(rows)
    stamps = np.sin(numbers[:, None] * 32 + np.arange(32)).astype(np.float16)
    labels = np.zeros(len(rows), NAMED)
    labels["e1"], labels["e2"] = np.cos(numbers), np.tan(numbers)
    return {"stamps": stamps.reshape(-1, 2, 4, 4), "labels": labels, "numbers": numbers}


CONTENTS = Contents(LAYOUT, draw, chunk_rows=CHUNK_ROWS)


def prepare(folder: Path, draw: Draw = draw, **changes: Any) -> Manifest:
    """Prepare the dataset, with another function that draws or other arguments."""
    arguments: dict[str, Any] = {
        "generator": "numbers",
        "parameters": PARAMETERS,
        "rows": ROWS,
        "contents": replace(CONTENTS, draw=draw),
        "processes": 1,
    }
    return preparation.prepare(folder, **{**arguments, **changes})


def change_byte(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def row_position(path: Path, row: int) -> int:
    array = np.load(path, mmap_mode="r")
    return int(array.offset + row * array[0].nbytes)
