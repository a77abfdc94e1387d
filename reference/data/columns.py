"""How one array of a dataset lies in its file while it is being written.

``Fixed`` rows all have one shape and make a ``.npy`` file. ``Ragged`` rows are bytes of any length,
one after the other in a ``.bin`` file, and where each ends is a fixed array beside it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cepheid.reference.data import store
from cepheid.reference.data.store import RAGGED, StoredArray
from cepheid.rules.errors import raise_if_refused

Rows = np.ndarray | bytes


@dataclass(frozen=True)
class Fixed:
    """Rows of ``dtype`` and ``shape``."""

    dtype: np.dtype
    shape: tuple[int, ...] = ()

    @property
    def layout_json(self) -> list[Any]:
        """The layout as a journal notes it."""
        return [store.describe_dtype(self.dtype), self.shape]

    def name_file(self, name: str) -> str:
        """Return the name of the file of array ``name``."""
        return f"{name}.npy"

    def count_bytes(self, rows: int) -> int:
        """Return the bytes of that many rows, without the file's header."""
        return rows * self.dtype.itemsize * int(np.prod(self.shape, dtype=np.int64))

    def create(self, path: Path, rows: int) -> None:
        """Create a file of its full size at ``path``."""
        np.lib.format.open_memmap(path, mode="w+", dtype=self.dtype, shape=(rows, *self.shape))

    def is_at(self, path: Path, rows: int) -> bool:
        """Return True if ``create`` has made the file at ``path``."""
        try:
            array = np.load(path, mmap_mode="r")
        except (OSError, ValueError, EOFError) as error:  # EOFError: killed before the header
            raise_if_refused(path, error)
            return False
        return bool(array.dtype == self.dtype and array.shape == (rows, *self.shape))

    def find_span(self, path: Path, rows: range) -> tuple[int, int]:
        """Return the first byte of ``rows`` in the file, and the byte after their last one."""
        header: int = np.load(path, mmap_mode="r").offset
        return header + self.count_bytes(rows.start), header + self.count_bytes(rows.stop)

    def flatten(self, name: str, rows: range, drawn: Rows) -> np.ndarray:
        """Return the drawn values of ``rows`` as uint8 (bytes,).

        Raises ValueError if their type or shape is wrong.
        """
        values = np.ascontiguousarray(drawn)
        if values.dtype != self.dtype or values.shape != (len(rows), *self.shape):
            raise ValueError(
                f"array {name}: {values.dtype} {values.shape} was drawn for {len(rows)} rows of "
                f"{self.dtype} {self.shape}"
            )
        return values.view(np.uint8).reshape(-1)

    def make_entry(self, path: Path, rows: int, chunks: tuple[str, ...]) -> StoredArray:
        """Return the entry of the manifest."""
        kind, shape = store.describe_dtype(self.dtype), (rows, *self.shape)
        return StoredArray(path.name, kind, shape, path.stat().st_size, chunks)


@dataclass(frozen=True)
class Ragged:
    """Rows of bytes of any length; all lengths are known before the rows are drawn.

    Row i ends ``ends[i]`` bytes after the beginning of row 0; int64 (rows,). Several rows are drawn
    as one ``bytes`` object.
    """

    ends: np.ndarray

    @property
    def layout_json(self) -> list[Any]:
        """The layout as a journal notes it."""
        return [RAGGED, [int(self.ends[-1])]]

    def name_file(self, name: str) -> str:
        """Return the name of the file of array ``name``."""
        return f"{name}.bin"

    def count_bytes(self, rows: int) -> int:
        """Return the bytes of that many rows."""
        return int(self.ends[rows - 1]) if rows else 0

    def create(self, path: Path, rows: int) -> None:
        """Create a file of its full size at ``path``."""
        with open(path, "wb") as file:
            file.truncate(self.count_bytes(rows))

    def is_at(self, path: Path, rows: int) -> bool:
        """Return True if ``create`` has made the file at ``path``."""
        return path.is_file() and path.stat().st_size == self.count_bytes(rows)

    def find_span(self, path: Path, rows: range) -> tuple[int, int]:
        """Return the first byte of ``rows`` in the file, and the byte after their last one."""
        return self.count_bytes(rows.start), self.count_bytes(rows.stop)

    def flatten(self, name: str, rows: range, drawn: Rows) -> np.ndarray:
        """Return the drawn values of ``rows`` as uint8 (bytes,).

        Raises ValueError if their type or shape is wrong.
        """
        expected = self.count_bytes(rows.stop) - self.count_bytes(rows.start)
        if not isinstance(drawn, bytes) or len(drawn) != expected:
            raise ValueError(f"array {name}: not {expected} bytes for {len(rows)} rows")
        return np.frombuffer(drawn, np.uint8)

    def make_entry(self, path: Path, rows: int, chunks: tuple[str, ...]) -> StoredArray:
        """Return the entry of the manifest."""
        return StoredArray(path.name, RAGGED, (rows,), path.stat().st_size, chunks)


Column = Fixed | Ragged


@dataclass(frozen=True)
class Known:
    """A column whose rows are known before any is drawn: ``values`` are all of them, one by one.

    Those of a ragged column are ``bytes``, one row after the other.
    """

    column: Column
    values: np.ndarray | bytes

    def take(self, rows: range) -> Rows:
        """Return the values of ``rows``."""
        if isinstance(self.column, Fixed):
            return self.values[rows.start : rows.stop]
        return self.values[slice(*map(self.column.count_bytes, (rows.start, rows.stop)))]
