"""A dataset of image files: many files in one, as ``images``, ``names`` and ``facts``.

``images`` (ragged) has the files as they are, one after the other, ``names`` (ragged) their names
in UTF-8, and ``facts`` is a structured array of what each dataset knows of an image, and FACTS.

Every file is read and decoded once, while it is packed. One that cannot be decoded is an error, and
all of them are named. Grey and CMYK images, and files that are no JPEG in spite of their name, stay
as they are and become RGB when they are decoded; ``remarks`` names and counts them.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from cepheid.reference.data import store
from cepheid.reference.data.columns import Fixed, Known, Ragged, Rows
from cepheid.reference.data.dataset import Opened, Work
from cepheid.reference.data.image_files.decoding import KINDS, decode, examine
from cepheid.reference.data.preparation import Contents
from cepheid.reference.data.store import Manifest, StoreError, explain_unreadable
from cepheid.rules.errors import explain_system_error

FACTS = [("height", np.int32), ("width", np.int32), ("kind", np.uint8)]
UNUSUAL = {
    "grey": "grey",
    "cmyk": "CMYK",
    "other": "no JPEG, or one in other colours",
    "imperfect": "with bytes that do not belong there",
}
REMARKS = "remarks.txt"  # in the prepared folder: kind and name of each of those
MOST_NAMED = 20  # damaged files in one message


Decode = Callable[[bytes | memoryview, int], np.ndarray]
Examine = Callable[[bytes], tuple[int, int, int]]


@dataclass(frozen=True)
class PackedFiles:
    """The packed files of a dataset: ``content`` maps uint8 (bytes,), row i ends at ``ends[i]``.

    ``kinds`` (rows,) are codes as in ``decoding``. ``decoder`` takes a file and its kind.
    """

    content: np.ndarray
    ends: np.ndarray
    kinds: np.ndarray
    decoder: Decode | None = None

    def read(self, row: int) -> memoryview:
        """Return the file of a row as it was distributed."""
        start = self.ends[row - 1] if row else 0
        return self.content[start : self.ends[row]].data

    def decode(self, row: int) -> np.ndarray:
        """Decode the file of a row, uint8 (height, width, channels); RGB unless it is grey.

        Raises StoreError where it is damaged: it was whole when it was packed.
        """
        content = self.read(row)
        try:
            return (self.decoder or decode)(content, int(self.kinds[row]))
        except Exception as error:  # whatever a decoder makes of bytes that are no image
            if explain_system_error(error):
                raise
            raise StoreError(
                f"image {row} of the data cannot be decoded ({error}): damaged after it was "
                "prepared; look with `cepheid data … --verify`, then delete and prepare again"
            ) from error


@dataclass(frozen=True)
class PackedImages:
    """A prepared dataset of image files, training first.

    ``heights`` and ``widths`` in pixels are (rows,), in memory.
    """

    channels: ClassVar[int] = 3

    train_samples: int
    evaluation_samples: int
    heights: np.ndarray
    widths: np.ndarray
    files: PackedFiles
    manifest: Manifest

    @classmethod
    def open(cls, opened: Opened, decoder: Decode | None = None, **own: Any) -> Self:
        """Open a prepared folder; ``own`` are the fields that only this dataset has."""
        arrays = opened.arrays
        facts = arrays["facts"]
        content, ends = np.asarray(arrays["images"]), np.array(arrays["images_ends"])
        return cls(
            **opened.splits,
            heights=np.array(facts["height"], np.int64),
            widths=np.array(facts["width"], np.int64),
            files=PackedFiles(content, ends, np.array(facts["kind"]), decoder),
            manifest=opened.manifest,
            **own,
        )


@dataclass(frozen=True)
class LabelledImages(PackedImages):
    """Images of which each has something to be learnt: ``labels``, (rows, …), in memory."""

    labels: np.ndarray


@dataclass(frozen=True)
class SourceFiles:
    """The files to pack: their folder, their names in it, and their sizes in bytes (rows,).

    ``places`` are where they lie in it, if that is not under their names. ``examine`` decodes a
    file and returns height, width and kind; the usual one is of ``jpeg``. ``sides`` (rows, 2) are
    heights and widths that annotations state, if there are any.
    """

    folder: Path
    names: Sequence[str]
    sizes_bytes: np.ndarray
    examine: Examine | None = None
    sides: np.ndarray | None = None
    places: Sequence[str] = ()

    def locate(self, row: int) -> Path:
        """Return where a file lies."""
        return self.folder / (self.places or self.names)[row]

    @property
    def columns(self) -> dict[str, Ragged | Known]:
        """The columns ``images`` and ``names``."""
        lengths = [len(name.encode()) for name in self.names]
        return {
            "images": Ragged(np.cumsum(self.sizes_bytes, dtype=np.int64)),
            "names": Known(
                Ragged(np.cumsum(lengths, dtype=np.int64)), "".join(self.names).encode()
            ),
        }

    def read(self, row: int) -> bytes:
        """Return a file. Raises StoreError where it cannot be read or is not what was listed."""
        path = self.locate(row)
        with explain_unreadable():
            content = path.read_bytes()
        if len(content) != self.sizes_bytes[row]:
            raise StoreError(f"{path}: changed while it was read. Prepare again.")
        return content

    def describe(self, row: int, content: bytes) -> tuple[int, int, int]:
        """Return height, width and kind of an image; one that cannot be decoded is ``damaged``.

        Raises StoreError where it has another size than the annotations say.
        """
        height, width, kind = (self.examine or examine)(content)
        if self.sides is not None and KINDS[kind] != "damaged":
            stated = tuple(self.sides[row].tolist())
            if (height, width) != stated:
                raise StoreError(
                    f"{self.locate(row)}: {height} × {width} pixels, the annotations "
                    f"say {stated[0]} × {stated[1]}. Unpack the image again."
                )
        return height, width, kind


@dataclass(frozen=True)
class Packing:
    """Image files, and what is known of them before they are read.

    ``facts`` (rows,) stand beside those of FACTS, and ``known`` are columns of their own. There are
    no remarks on images of ``usual`` kinds.
    """

    files: SourceFiles
    facts: Mapping[str, np.ndarray]
    known: Mapping[str, Known] = field(default_factory=dict)
    usual: Collection[str] = ()

    def plan(
        self, work: Work, recorded: Mapping[str, Any], packages: Sequence[str], parts: int = 1
    ) -> Contents:
        """Return what a preparation writes; the manifest has the facts ``recorded``."""
        damage = work.folder.with_name(f"{work.folder.name}-damaged.txt")
        return Contents(
            {**self.files.columns, "facts": Fixed(self._dtype), **self.known},
            self.read,
            recorded,
            packages,
            judge=partial(check_images, self.files, damage, usual=self.usual),
            parts=parts,
        )

    def read(self, rows: range) -> dict[str, Rows]:
        """Read and decode the files of ``rows``; return the stored arrays."""
        contents, sides = [], []
        for row in rows:
            contents.append(self.files.read(row))
            sides.append(self.files.describe(row, contents[-1]))
        facts = np.zeros(len(rows), self._dtype)
        for name, values in self.facts.items():
            facts[name] = values[rows.start : rows.stop]
        facts["height"], facts["width"], facts["kind"] = np.transpose(sides)
        return {"images": b"".join(contents), "facts": facts}

    @property
    def _dtype(self) -> np.dtype:
        return np.dtype([*((name, values.dtype) for name, values in self.facts.items()), *FACTS])


def check_images(
    files: SourceFiles, damage: Path, folder: Path, usual: Collection[str] = ()
) -> None:
    """Write REMARKS, but for the ``usual`` kinds. Raises StoreError if images are damaged.

    The error names some of them; if there are many, the file ``damage`` names all.
    """
    arrays = store.open_arrays(folder)
    damaged = [str(files.locate(row)) for row in _find_rows(arrays, "damaged")]
    if damaged:
        named = "".join(f"\n  {name}" for name in damaged[:MOST_NAMED])
        more = ""
        if len(damaged) > MOST_NAMED:
            damage.write_text("".join(f"{name}\n" for name in damaged), encoding="utf-8")
            more = f"\n  and {len(damaged) - MOST_NAMED:,} more; {damage} names all"
        raise StoreError(
            f"{files.folder}: damaged: {len(damaged):,} of {len(arrays['facts']):,} images "
            f"cannot be decoded to their end. Unpack these again, then prepare again:{named}{more}"
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


def _find_rows(arrays: Mapping[str, np.ndarray], kind: str) -> np.ndarray:
    return np.flatnonzero(arrays["facts"]["kind"] == KINDS.index(kind))


def _list_names(arrays: Mapping[str, np.ndarray], kind: str) -> list[str]:
    ends, text = arrays["names_ends"], arrays["names"]
    rows = _find_rows(arrays, kind)
    starts = [int(ends[row - 1]) if row else 0 for row in rows]
    return [bytes(text[a : ends[row]]).decode() for a, row in zip(starts, rows, strict=True)]
