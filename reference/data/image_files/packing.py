"""Many image files in one: ``images``, ``names`` and ``facts`` of a dataset.

``images`` (ragged) has the files as they are, one after the other, ``names`` (ragged) their names
in UTF-8, and ``facts`` is a structured array with at least the fields of FACTS.

Every file is read and decoded once, while it is packed. One that cannot be decoded is an error, and
all of them are named. Grey and CMYK images, and files that are no JPEG in spite of their name, stay
as they are and become RGB when they are decoded; ``remarks`` names and counts them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from cepheid.reference.data import store
from cepheid.reference.data.columns import Ragged
from cepheid.reference.data.image_files.jpeg import KINDS, decode, examine
from cepheid.reference.data.store import StoreError, explain_unreadable

FACTS = [("height", np.int32), ("width", np.int32), ("kind", np.uint8)]
UNUSUAL = {
    "grey": "grey",
    "cmyk": "CMYK",
    "other": "no JPEG, or one in other colours",
    "imperfect": "with bytes that do not belong there",
}
REMARKS = "remarks.txt"  # in the prepared folder: kind and name of each of those
MOST_NAMED = 20  # damaged files in one message


@dataclass(frozen=True)
class PackedFiles:
    """The packed files of a dataset: ``content`` maps uint8 (bytes,), row i ends at ``ends[i]``.

    ``kinds`` (rows,) are codes as in ``jpeg``.
    """

    content: np.ndarray
    ends: np.ndarray
    kinds: np.ndarray

    @classmethod
    def open(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Open the packed files among the arrays of a dataset; ``images`` is (bytes,)."""
        return cls(
            content=np.asarray(arrays["images"]),
            ends=np.array(arrays["images_ends"]),
            kinds=np.array(arrays["facts"]["kind"]),
        )

    def read(self, row: int) -> memoryview:
        """Return the file of a row as it was distributed."""
        start = self.ends[row - 1] if row else 0
        return self.content[start : self.ends[row]].data

    def decode(self, row: int) -> np.ndarray:
        """Decode the file of a row to RGB, uint8 (height, width, 3)."""
        return decode(self.read(row), int(self.kinds[row]))


@dataclass(frozen=True)
class SourceFiles:
    """The files to pack: their folder, their names in it, and their sizes in bytes (rows,).

    ``examine`` decodes a file and returns height, width and kind; the usual one is of ``jpeg``.
    """

    folder: Path
    names: Sequence[str]
    sizes_bytes: np.ndarray
    examine: Callable[[bytes], tuple[int, int, int]] | None = None

    @property
    def layout(self) -> dict[str, Ragged]:
        """The layout of ``images`` and ``names``."""
        lengths = [len(name.encode()) for name in self.names]
        return {
            "images": Ragged(np.cumsum(self.sizes_bytes, dtype=np.int64)),
            "names": Ragged(np.cumsum(lengths, dtype=np.int64)),
        }

    def read(self, rows: range) -> tuple[dict[str, bytes], list[tuple[int, int, int]]]:
        """Return ``images`` and ``names`` of rows, and of each image height, width and kind.

        A file that cannot be decoded has the kind ``damaged``. Raises StoreError where a file
        cannot be read or is not what was listed.
        """
        files, examined = [], []
        for row in rows:
            files.append(self._read_file(row))
            examined.append((self.examine or examine)(files[-1]))
        names = "".join(self.names[rows.start : rows.stop]).encode()
        return {"images": b"".join(files), "names": names}, examined

    def _read_file(self, row: int) -> bytes:
        path = self.folder / self.names[row]
        with explain_unreadable():
            content = path.read_bytes()
        if len(content) != self.sizes_bytes[row]:
            raise StoreError(f"{path}: changed while it was read. Prepare again.")
        return content


def check_images(source: Path, damage: Path, folder: Path, usual: Collection[str] = ()) -> None:
    """Write REMARKS, but for the ``usual`` kinds. Raises StoreError if images are damaged.

    The error names some of them; if there are many, the file ``damage`` names all.
    """
    arrays = store.open_arrays(folder)
    damaged = _list_names(arrays, "damaged")
    if damaged:
        named = "".join(f"\n  {source / name}" for name in damaged[:MOST_NAMED])
        more = ""
        if len(damaged) > MOST_NAMED:
            damage.write_text("".join(f"{name}\n" for name in damaged), encoding="utf-8")
            more = f"\n  and {len(damaged) - MOST_NAMED:,} more; {damage} names all"
        raise StoreError(
            f"{source}: damaged: {len(damaged):,} of {len(arrays['facts']):,} images cannot be "
            f"decoded to their end. Unpack these again, then prepare again:{named}{more}"
        )
    lines = [
        f"{kind}\t{name}\n"
        for kind in UNUSUAL
        if kind not in usual
        for name in _list_names(arrays, kind)
    ]
    if lines:
        (folder / REMARKS).write_text("".join(lines), encoding="utf-8")


def remark_on_kinds(folder: Path, usual: Collection[str] = ()) -> list[str]:
    """Return remarks about a prepared dataset, e.g. how many of its images are grey.

    There are none about the ``usual`` kinds.
    """
    kinds = store.open_arrays(folder)["facts"]["kind"]
    counts = {
        kind: np.count_nonzero(kinds == KINDS.index(kind)) for kind in UNUSUAL if kind not in usual
    }
    found = [f"{count:,} {UNUSUAL[kind]}" for kind, count in counts.items() if count]
    if not found:
        return []
    return [f"unusual images, which are used: {'; '.join(found)} ({folder / REMARKS})"]


def _list_names(arrays: Mapping[str, np.ndarray], kind: str) -> list[str]:
    ends, text = arrays["names_ends"], arrays["names"]
    rows = np.flatnonzero(arrays["facts"]["kind"] == KINDS.index(kind))
    starts = [int(ends[row - 1]) if row else 0 for row in rows]
    return [bytes(text[a : ends[row]]).decode() for a, row in zip(starts, rows, strict=True)]
