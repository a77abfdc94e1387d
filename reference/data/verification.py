"""Read the bytes of a dataset again and compare them with what was prepared.

Bytes are read with system calls, not through a memory map: a disk that fails is then an error with
a name, and not a signal.
"""

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from cepheid.reference.data import store
from cepheid.reference.data.store import Manifest, OnProgress, StoredArray, StoreError
from cepheid.rules.host import usable_processors

PIECE_BYTES = 2**20

Changes = Mapping[tuple[str, int], str]
"""The digests of the chunks that are not what was prepared, by array and number of the chunk."""


@dataclass(frozen=True)
class DataRead:
    """What a run read: the digest of the bytes, and what is wrong with them, if anything."""

    digest: str
    problem: str = ""


@dataclass(frozen=True)
class _Span:
    """The bytes of one chunk of one array."""

    name: str
    chunk: int
    rows: range
    start: int
    stop: int


def verify(folder: Path, on_progress: OnProgress | None = None) -> Manifest:
    """Read everything again and compare it with the digests in the manifest.

    ``on_progress`` is called with rows done and rows in all. Raises StoreError as ``open_arrays``
    does, and for the first damaged chunk, naming its file and rows.
    """
    changes = find_changes(folder, on_progress=on_progress)
    manifest = store.read_manifest(folder)
    if changes:
        raise StoreError(describe_changes(folder, manifest, changes))
    return manifest


def find_changes(
    folder: Path, share: int = 0, shares: int = 1, on_progress: OnProgress | None = None
) -> Changes:
    """Digest every chunk of a dataset and return those that are not what was prepared.

    Several processes share the work: this one takes every ``shares``-th chunk from ``share`` on.
    ``on_progress`` is called with the row reached in every array and the rows in all. Raises
    StoreError as ``open_arrays`` does, and UserError where the system cannot read a file.
    """
    manifest = store.read_manifest(folder)
    arrays = store.open_arrays(folder)
    chunks = list(enumerate(store.split_rows(manifest.rows, manifest.chunk_rows)))[share::shares]
    spans = [
        _Span(name, chunk, rows, *_find_bytes(stored, arrays, name, rows))
        for chunk, rows in chunks
        for name, stored in manifest.arrays.items()
    ]
    files = [folder / manifest.arrays[span.name].file for span in spans]
    *_, last = manifest.arrays
    changes = {}
    with ThreadPoolExecutor(max(1, usable_processors() // shares)) as pool:
        for span, digest in zip(spans, pool.map(_digest_span, files, spans), strict=True):
            if digest != manifest.arrays[span.name].chunks[span.chunk]:
                changes[span.name, span.chunk] = digest
            if on_progress and span.name == last:
                on_progress(span.rows.stop, manifest.rows)
    return changes


def compute_digest(manifest: Manifest, changes: Changes) -> str:
    """Return the digest of a dataset that differs from its manifest in these chunks (rule T27)."""
    arrays = {
        name: replace(
            array,
            chunks=tuple(changes.get((name, k), chunk) for k, chunk in enumerate(array.chunks)),
        )
        for name, array in manifest.arrays.items()
    }
    return store.compute_digest(replace(manifest, arrays=arrays))


def describe_changes(folder: Path, manifest: Manifest, changes: Changes) -> str:
    """Return the message for a dataset that is not what was prepared."""
    name, chunk = min(changes, key=lambda place: (place[1], place[0]))
    rows = store.split_rows(manifest.rows, manifest.chunk_rows)[chunk]
    more = f", and {len(changes) - 1:,} more places" if len(changes) > 1 else ""
    return (
        f"{folder / manifest.arrays[name].file}: rows {rows.start} to {rows.stop - 1} are not what "
        f"was written (their SHA-256 differs from the manifest's){more}. "
        f"{store.suggest_preparation(folder)}"
    )


def _find_bytes(
    stored: StoredArray, arrays: Mapping[str, np.memmap], name: str, rows: range
) -> tuple[int, int]:
    """Return the first byte of ``rows`` in the file, and the byte after their last one."""
    if stored.dtype == store.RAGGED:
        ends = arrays[store.name_ends(name)]
        return int(ends[rows.start - 1]) if rows.start else 0, int(ends[rows.stop - 1])
    header, row_bytes = int(arrays[name].offset), arrays[name].nbytes // stored.shape[0]
    return header + rows.start * row_bytes, header + rows.stop * row_bytes


def _digest_span(path: Path, span: _Span) -> str:
    """Return the SHA-256 of the bytes of one span; the two calls run outside Python's lock."""
    digest = hashlib.sha256()
    with store.explain_system_errors(path), open(path, "rb", buffering=0) as file:
        place = span.start
        while place < span.stop:
            piece = os.pread(file.fileno(), min(PIECE_BYTES, span.stop - place), place)
            if not piece:
                raise StoreError(f"{path}: the file ends early. It was cut short meanwhile.")
            digest.update(piece)
            place += len(piece)
    return digest.hexdigest()
