"""Compare what a program of somebody else read of a dataset with what is there.

The program writes an ``.npz`` file: the first rows of arrays under their names in the manifest,
``stamps`` for example, and single rows of ragged arrays as ``images_0``, ``images_1``. Nothing of
the program is run here.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from cepheid.reference.data import store
from cepheid.reference.data.store import RAGGED, Manifest
from cepheid.rules.errors import UserError

FILE_BYTES_MAX = 2**30
MISTAKES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "the last two axes are swapped": lambda values: values.swapaxes(-1, -2),
    "the last axis runs backwards": lambda values: values[..., ::-1],
    "the axis before the last runs backwards": lambda values: values[..., ::-1, :],
    "the second axis runs backwards": lambda values: values[:, ::-1],
    "the bytes of each number are swapped": lambda values: values.byteswap(),
}
"""What may have happened to the values that are there."""


def compare(folder: Path, read: Path) -> Iterator[tuple[str, bool]]:
    """Yield a line for each array in the file ``read``, and whether it agrees with the dataset.

    Raises UserError where the file cannot be used.
    """
    manifest, arrays = store.read_manifest(folder), store.open_arrays(folder)
    found = _load(read)
    if not found:
        raise UserError(f"{read}: holds no array; expected some of {_list_names(manifest)}")
    for name, values in found.items():
        expected = _find_expected(manifest, arrays, name, values)
        if expected is None:
            yield f"{name}: there is no such array or row; there are {_list_names(manifest)}", False
            continue
        problem = _find_problem(values, expected, arrays.get(name))
        yield f"{name}: {problem or f'{len(values):,} rows as in the dataset'}", not problem


def _load(path: Path) -> dict[str, np.ndarray]:
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise UserError(f"{path}: larger than 1 GiB; a batch of the first rows is enough")
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except UserError:
        raise
    except Exception as error:  # whatever NumPy makes of a file that is none
        raise UserError(f"{path}: not an .npz file of plain arrays ({error})") from error


def _list_names(manifest: Manifest) -> str:
    names = (
        f"{name}_0, {name}_1 …" if array.dtype == RAGGED else name
        for name, array in manifest.arrays.items()
    )
    return ", ".join(names)


def _find_expected(
    manifest: Manifest, arrays: Mapping[str, np.ndarray], name: str, values: np.ndarray
) -> np.ndarray | None:
    """Return what should have been read, or None for an unknown array or row.

    A record of equal fields is a row of a plain array, of which the first columns may be read.
    """
    if name in arrays and manifest.arrays[name].dtype != RAGGED:
        expected: np.ndarray = np.asarray(arrays[name][: max(1, len(values))])
        fields = expected.dtype.fields
        if fields and values.dtype.fields is None:
            kinds = {kind for kind, *_ in fields.values()}
            if len(kinds) > 1:
                return None
            expected = expected.view(kinds.pop()).reshape(len(expected), -1)
            expected = expected[:, : values.shape[-1]] if values.ndim == 2 else expected[:, 0]
        return expected
    match = re.fullmatch(r"(\w+)_(\d{1,12})", name)
    stored = manifest.arrays.get(match[1]) if match else None
    if match is None or stored is None or stored.dtype != RAGGED or int(match[2]) >= manifest.rows:
        return None
    row, ends = int(match[2]), arrays[store.name_ends(match[1])]
    content = arrays[match[1]][ends[row - 1] if row else 0 : ends[row]]
    is_divided = values.dtype.kind in "iu" and len(content) % values.dtype.itemsize == 0
    return np.frombuffer(content.tobytes(), values.dtype) if is_divided else content


def _find_problem(values: np.ndarray, expected: np.ndarray, everything: np.ndarray | None) -> str:
    """Return how values differ from those expected, with the likely mistake; "" if they agree."""
    if values.shape != expected.shape:
        return f"has the shape {values.shape}, expected {expected.shape}"
    if _are_equal(values, expected):
        return ""
    for mistake, make in MISTAKES.items():
        if expected.ndim > 1 or "bytes" in mistake:
            changed = make(expected)
            if changed.shape == values.shape and _are_equal(values, changed):
                return f"differs: {mistake}"
    if everything is not None and values.dtype.fields is None and expected.dtype.fields is None:
        with np.errstate(all="ignore"):
            ratios = values.astype(float) / expected.astype(float)
            factor = float(np.nanmedian(ratios[np.isfinite(ratios)])) if ratios.size else 0.0
            if factor and np.allclose(values.astype(float), expected.astype(float) * factor, 1e-3):
                return f"differs: every number is {factor:g} times what is there"
        for row in range(1, min(len(everything), 100_000)):
            if _are_equal(values[:1], np.asarray(everything[row : row + 1])):
                return f"differs: begins with row {row:,}, not with row 0"
    at = np.argwhere(np.asarray(values != expected))[0].tolist()
    where = tuple(at)
    return f"differs first at {at}: {values[where]} was read, {expected[where]} is there"


def _are_equal(values: np.ndarray, expected: np.ndarray) -> bool:
    is_float = values.dtype.kind == "f" and expected.dtype.kind == "f"
    return bool(np.array_equal(values, expected, equal_nan=is_float))
