"""Datasets on disk: a folder of memory-mappable files, one row per sample, and a manifest.

A prepared folder holds ``<array>.npy`` for each array and ``manifest.json``. An array whose rows
are bytes of any length is *ragged*: ``<array>.bin`` holds them one after the other, and row i ends
``<array>_ends[i]`` bytes after the beginning of the file. This module knows the format and reads
it; ``preparation`` writes it.
"""

import hashlib
import importlib.metadata
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cepheid.rules.errors import UserError, cannot_read
from cepheid.rules.events import is_integer
from cepheid.rules.host import atomic_write

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
RAGGED = "ragged"
LARGEST_MANIFEST_BYTES = 64 * 2**20

OnProgress = Callable[[int, int], None]


class StoreError(UserError):
    """The error for a dataset folder that cannot be used or written."""


@contextmanager
def explain_unreadable() -> Iterator[None]:
    """Turn errors of the system about files that are read into StoreError."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{error.filename}: cannot be read ({error.strerror}). Fix that and prepare again."
        ) from error


@dataclass(frozen=True)
class StoredArray:
    """One file of a dataset.

    ``dtype`` is NumPy's description in the file's header as plain JSON, or RAGGED. ``bytes`` is the
    size of the whole file. ``chunks`` are the SHA-256 digests of the rows of each chunk.
    """

    file: str
    dtype: Any
    shape: tuple[int, ...]
    bytes: int
    chunks: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    """The contents of a prepared folder.

    ``digest`` is the SHA-256 over generator, parameters, layout and all chunk digests in order.
    """

    generator: str
    parameters: Mapping[str, Any]
    versions: Mapping[str, str]
    rows: int
    chunk_rows: int
    arrays: Mapping[str, StoredArray]
    digest: str
    format_version: int = FORMAT_VERSION


# Reading ------------------------------------------------------------------------------------------


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a prepared folder and compare it with the sizes of its files.

    It reads nothing else: a run may do no more before its clock starts. Raises StoreError if the
    manifest is missing, damaged or of another format version, or if a file is missing or has
    another size.
    """
    manifest = _parse_manifest(folder)
    for array in manifest.arrays.values():
        path = folder / array.file
        with explain_system_errors(path):
            if not path.is_file():
                raise StoreError(f"{path}: the file is missing. {suggest_preparation(folder)}")
            size = path.stat().st_size
        if size != array.bytes:
            raise StoreError(
                f"{path}: the file has {size:,} bytes, expected {array.bytes:,}. "
                f"{suggest_preparation(folder)}"
            )
    return manifest


def open_arrays(folder: Path) -> dict[str, np.memmap]:
    """Map all arrays of a prepared folder into memory, for reading.

    Each has shape (rows, …); a ragged one is uint8 (bytes,).

    Raises StoreError as ``read_manifest`` does, and if a file's header contradicts the manifest.
    """
    manifest = read_manifest(folder)
    arrays = {name: _open_array(folder, array) for name, array in manifest.arrays.items()}
    for name, array in manifest.arrays.items():
        if array.dtype == RAGGED:
            _check_ends(folder / array.file, array, arrays[name_ends(name)])
    return arrays


def drop_caches(folder: Path) -> bool:
    """Ask the operating system to forget the cached pages of the folder's arrays; needs no root.

    Returns False where the system has no such call, as macOS. Raises StoreError as
    ``read_manifest`` does.
    """
    manifest = read_manifest(folder)
    if not hasattr(os, "posix_fadvise"):
        return False
    for array in manifest.arrays.values():
        with explain_system_errors(folder / array.file), open(folder / array.file, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return True


def _parse_manifest(folder: Path) -> Manifest:
    path = folder / MANIFEST
    with explain_system_errors(path):
        if folder.exists() and not folder.is_dir():
            raise StoreError(f"{folder}: not a folder. Move it away and prepare the dataset.")
        if not folder.is_dir():
            raise StoreError(f"{folder}: there is no such folder. Prepare the dataset first.")
        if not path.is_file():
            raise StoreError(
                f"{path}: missing, so this is not a finished dataset. {suggest_preparation(folder)}"
            )
        size = path.stat().st_size
        if size > LARGEST_MANIFEST_BYTES:
            raise StoreError(
                f"{path}: {size:,} bytes, expected at most {LARGEST_MANIFEST_BYTES:,}. "
                f"{suggest_preparation(folder)}"
            )
        content = path.read_bytes()
    try:
        facts = json.loads(content, parse_constant=_refuse_constant)
        version = facts["format_version"]
        if version != FORMAT_VERSION:
            raise StoreError(
                f"{path}: format version {version!r}, this program reads {FORMAT_VERSION}. "
                f"{suggest_preparation(folder)}"
            )
        manifest = _make_manifest(facts)
    except MemoryError as error:
        raise cannot_read(path, error) from error
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise StoreError(
            f"{path}: damaged ({type(error).__name__}: {error}), expected the JSON that preparing "
            f"the dataset wrote. {suggest_preparation(folder)}"
        ) from error
    return manifest


def _make_manifest(facts: Mapping[str, Any]) -> Manifest:
    """Make a Manifest of its JSON. Raises ValueError, TypeError or LookupError if it is wrong."""
    rows, chunk_rows = _check_count(facts["rows"]), _check_count(facts["chunk_rows"])
    for key, kind in {"generator": str, "parameters": dict, "versions": dict}.items():
        _check_type(kind, facts[key])
    arrays = {}
    for name, entry in _check_type(dict, facts["arrays"]).items():
        shape = tuple(map(_check_count, _check_type(list, entry["shape"])))
        chunks = tuple(_check_type(str, digest) for digest in _check_type(list, entry["chunks"]))
        array = StoredArray(**{**entry, "shape": shape, "chunks": chunks})
        is_ragged = array.dtype == RAGGED
        if array.file != f"{name}.{'bin' if is_ragged else 'npy'}" or not name.isidentifier():
            raise ValueError(f"array {name!r} in file {array.file!r}")
        if len(chunks) != -(-rows // chunk_rows) or shape[:1] != (rows,):
            raise ValueError(f"array {name!r} does not have {rows} rows")
        if is_ragged and name_ends(name) not in facts["arrays"]:
            raise ValueError(f"array {name!r} without {name_ends(name)!r}")
        _check_count(array.bytes)
        arrays[name] = array
    manifest = Manifest(**{**facts, "arrays": arrays})
    if manifest.digest != compute_digest(manifest):
        raise ValueError("its digest does not belong to its contents")
    return manifest


def _check_type(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"{str(value)[:40]!r} is not a {kind.__name__}")
    return value


def _check_count(value: Any) -> int:
    if not is_integer(value) or not 0 < value < 2**63:
        raise ValueError(f"{str(value)[:40]} is not a count")
    return value


def _open_array(folder: Path, stored: StoredArray) -> np.memmap:
    path = folder / stored.file
    try:
        with explain_system_errors(path):
            if stored.dtype == RAGGED:
                return np.memmap(path, np.uint8, mode="r")
            array: np.memmap = np.load(path, mmap_mode="r")
    except UserError:
        raise
    except Exception as error:  # whatever NumPy makes of a header that is none
        reason = str(error).partition("\n")[0][:200]
        raise StoreError(f"{path}: damaged ({reason}). {suggest_preparation(folder)}") from error
    if not array.flags.c_contiguous:
        raise StoreError(f"{path}: damaged (columns first). {suggest_preparation(folder)}")
    if array.shape != stored.shape or describe_dtype(array.dtype) != stored.dtype:
        raise StoreError(
            f"{path}: holds {array.dtype} {array.shape}, expected {stored.dtype} {stored.shape}. "
            f"{suggest_preparation(folder)}"
        )
    return array


def _check_ends(path: Path, stored: StoredArray, ends: np.ndarray) -> None:
    is_right = ends.dtype == np.int64 and ends.ndim == 1 and ends[0] >= 0
    if not is_right or ends[-1] != stored.bytes or np.any(ends[1:] < ends[:-1]):
        raise StoreError(
            f"{path}: where its rows end is damaged ({name_ends(path.stem)}.npy). "
            f"{suggest_preparation(path.parent)}"
        )


def suggest_preparation(folder: Path) -> str:
    """Return the advice for a dataset that is damaged."""
    return f"Delete {folder} and prepare the dataset again."


@contextmanager
def explain_system_errors(path: Path) -> Iterator[None]:
    """Raise UserError where the system refuses to read ``path``: that is no damage to the data."""
    try:
        yield
    except (OSError, MemoryError) as error:
        raise cannot_read(path, error) from error


# The format ---------------------------------------------------------------------------------------


def split_rows(rows: int, chunk_rows: int) -> list[range]:
    """Split ``rows`` rows into chunks of ``chunk_rows``; the last one may be shorter."""
    return [range(first, min(first + chunk_rows, rows)) for first in range(0, rows, chunk_rows)]


def name_ends(name: str) -> str:
    """Return the name of the array with the ends of the rows of the ragged array ``name``."""
    return f"{name}_ends"


def compute_sha256(values: np.ndarray) -> str:
    """Return the SHA-256 of the bytes of an array of any shape, in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(values).view(np.uint8).data).hexdigest()


def describe_dtype(dtype: np.dtype) -> Any:
    """Return a data type as in the header of a ``.npy`` file, fields as [name, type]."""
    return convert_to_json(np.lib.format.dtype_to_descr(dtype))


def convert_to_json(value: Any) -> Any:
    """Return a value as JSON reads it back: tuples as lists, keys as strings."""
    return json.loads(json.dumps(value, allow_nan=False))


def find_versions(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of Python, NumPy and the packages for a manifest."""
    found = {name.lower(): importlib.metadata.version(name) for name in packages}
    return {"python": platform.python_version(), "numpy": np.__version__, **found}


def find_first_difference(found: Any, wanted: Any, name: str = "") -> str:
    """Return the first setting in which two JSON values differ, or nothing if they are equal."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in sorted({*found, *wanted}):
            inner = f"{name}.{key}" if name else key
            difference = find_first_difference(found.get(key), wanted.get(key), inner)
            if difference:
                return difference
        return ""
    return "" if found == wanted else f"{name}: {found!r} there, {wanted!r} asked for"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Fill in the digest and write the manifest through to the disk."""
    manifest = replace(manifest, digest=compute_digest(manifest))
    atomic_write(folder / MANIFEST, json.dumps(asdict(manifest), indent=1) + "\n")


def compute_digest(manifest: Manifest) -> str:
    """Return the digest of a dataset with the layout and the chunks of a manifest (rule T27)."""
    arrays = {
        name: [array.dtype, array.shape, array.chunks] for name, array in manifest.arrays.items()
    }
    contents = [manifest.generator, manifest.parameters, manifest.chunk_rows, arrays]
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
