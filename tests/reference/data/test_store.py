"""Reading a prepared dataset, whole or damaged."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from cepheid.reference.data import store, verification
from cepheid.reference.data.store import StoreError
from cepheid.rules.errors import UserError
from tests import assert_raises
from tests.reference.data.numbered import LAYOUT, PARAMETERS, ROWS, change_byte, draw, row_position

Change = Callable[[dict[str, Any]], object]


def edit_manifest(folder: Path, change: Change) -> None:
    facts = json.loads((folder / store.MANIFEST).read_text())
    change(facts)
    (folder / store.MANIFEST).write_text(json.dumps(facts))


# Reading ------------------------------------------------------------------------------------------


def test_arrays_are_those_that_were_drawn_and_the_manifest_tells_what_was_asked_for(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = store.open_arrays(prepared)
    assert arrays.keys() == LAYOUT.keys()
    for name, expected in draw(range(ROWS)).items():
        assert arrays[name].dtype == expected.dtype
        np.testing.assert_array_equal(arrays[name], expected)
        assert not arrays[name].flags.writeable
    manifest = store.read_manifest(prepared)
    assert manifest.generator == "numbers"
    assert manifest.parameters == PARAMETERS
    assert manifest.rows == ROWS
    assert manifest.versions["numpy"] == np.__version__
    assert manifest.arrays["stamps"].shape == (ROWS, 2, 4, 4)
    assert len(manifest.arrays["stamps"].chunks) == 8
    assert verification.verify(prepared) == manifest
    assert store.drop_caches(prepared)
    assert verification.verify(prepared)
    monkeypatch.delattr(os, "posix_fadvise")  # as on macOS
    assert not store.drop_caches(prepared)


# Damage -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("row", "rows"), [(0, "0 to 2"), (7, "6 to 8"), (22, "21 to 22")])
def test_damaged_byte_is_found_with_its_rows(folder: Path, row: int, rows: str) -> None:
    path = folder / "stamps.npy"
    change_byte(path, row_position(path, row))
    assert store.read_manifest(folder)  # looks at sizes only
    with pytest.raises(StoreError, match=rf"stamps\.npy: rows {rows} are not what was written"):
        verification.verify(folder)


def replace_bytes(path: Path, old: bytes, new: bytes) -> None:
    path.write_bytes(path.read_bytes().replace(old, new))


def put_file_in_place(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.touch()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: replace_bytes(folder / "numbers.npy", b"<i8", b"<u8"),
         r"numbers\.npy: holds uint64 \(23,\), expected <i8"),
        (
            lambda folder: replace_bytes(
                folder / "stamps.npy", b"'fortran_order': False", b"'fortran_order': True "
            ),
            r"stamps\.npy: damaged \(columns first\)",
        ),
        (lambda folder: os.truncate(folder / "labels.npy", 311),
         r"labels\.npy: the file has 311 bytes, expected 312"),
        (lambda folder: (folder / "labels.npy").unlink(),
         r"labels\.npy: the file is missing\. Delete"),
        (lambda folder: (folder / store.MANIFEST).unlink(), r"manifest\.json: missing"),
        (shutil.rmtree, "Prepare the dataset first"),
        (put_file_in_place, "not a folder"),
        (lambda folder: edit_manifest(folder, lambda facts: facts.update(format_version=2)),
         "format version 2, this program reads 1"),
        (lambda folder: os.truncate(folder / store.MANIFEST, store.LARGEST_MANIFEST_BYTES + 1),
         "expected at most"),
    ],
)  # fmt: skip
def test_damage_is_found(folder: Path, damage: Callable[[Path], object], message: str) -> None:
    damage(folder)
    assert_raises(StoreError, message, store.open_arrays, folder)


@pytest.mark.parametrize(
    "header",
    [
        f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({10**30},)}}",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (-5,)}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (23,)}",
        "__import__('os').abort()",
        "((((((",
        "[]",
    ],
)
def test_hostile_header_is_found(folder: Path, header: str) -> None:
    path = folder / "numbers.npy"
    content = path.read_bytes()
    path.write_bytes(content[:10] + header.encode().ljust(117) + b"\n" + content[128:])
    assert_raises(StoreError, r"numbers\.npy: damaged", store.open_arrays, folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda facts: facts.pop("rows"),
        lambda facts: facts.update(rows=10**18),
        lambda facts: facts.update(chunk_rows=0),
        lambda facts: facts.update(surprise=1),
        lambda facts: facts.update(arrays=[]),
        lambda facts: facts["parameters"].update(seed=8),
        lambda facts: facts["arrays"]["labels"].update(file="../labels.npy"),
        lambda facts: facts["arrays"]["labels"].update(shape=[]),
        lambda facts: facts["arrays"]["labels"]["chunks"].reverse(),
    ],
)
def test_edited_manifest_is_found(folder: Path, change: Change) -> None:
    edit_manifest(folder, change)
    assert_raises(StoreError, r"manifest\.json: damaged", store.read_manifest, folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda facts: facts.update(rows=float(ROWS)),
        lambda facts: facts.update(rows=1e999),
        lambda facts: facts.update(rows=str(ROWS)),
        lambda facts: facts.update(generator=7),
        lambda facts: facts.update(versions=[]),
        lambda facts: facts["arrays"]["labels"].update(bytes="312"),
        lambda facts: facts["arrays"]["stamps"].update(shape=[ROWS, 10**40]),
        lambda facts: facts["arrays"]["stamps"].update(shape=[ROWS, -1]),
        lambda facts: facts["arrays"]["stamps"].update(shape=[ROWS, 2, 4, 4.0]),
        lambda facts: facts["arrays"]["stamps"].update(chunks=[1] * 8),
    ],
)
def test_hostile_manifest_is_found_though_its_digest_fits(
    folder: Path, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "compute_digest", lambda manifest: manifest.digest)
    edit_manifest(folder, lambda facts: None)
    assert store.read_manifest(folder)
    edit_manifest(folder, change)
    assert_raises(StoreError, r"manifest\.json: damaged", store.read_manifest, folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"format_version": NaN}', "[" * 10**5])
def test_a_manifest_without_its_json_is_found(folder: Path, text: str) -> None:
    (folder / store.MANIFEST).write_text(text)
    assert_raises(StoreError, r"manifest\.json: damaged", store.read_manifest, folder)


NUMBERS = (errno.ENOMEM, errno.EMFILE, errno.EACCES, errno.EIO)
REFUSALS: dict[str, Exception] = {errno.errorcode[n]: OSError(n, os.strerror(n)) for n in NUMBERS}
REFUSALS["ulimit -v"] = MemoryError()


@pytest.mark.parametrize("message", REFUSALS)
@pytest.mark.parametrize("call", ["numpy.load", "pathlib.Path.read_bytes", "os.posix_fadvise"])
def test_what_the_system_refuses_is_no_damage(
    call: str, message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call, Mock(side_effect=REFUSALS[message]))
    read = store.drop_caches if call == "os.posix_fadvise" else store.open_arrays
    with pytest.raises(UserError, match=rf"cannot be read .*{message}") as raised:
        read(folder)
    assert "damaged" not in str(raised.value)
    assert "Delete" not in str(raised.value)


def test_the_digest_of_what_is_on_the_disk_follows_from_the_rules_alone(folder: Path) -> None:
    """As a program of another vendor computes it, after the words of T27."""
    for is_damaged in (False, True):
        if is_damaged:
            change_byte(folder / "stamps.npy", -1)
        expected = _digest_by_the_rules(folder)
        shares = (verification.find_changes(folder, share, 2) for share in (0, 1))
        changes = {place: digest for share in shares for place, digest in share.items()}
        manifest = store.read_manifest(folder)
        assert verification.compute_digest(manifest, changes) == expected
        assert (expected != manifest.digest, bool(changes)) == (is_damaged, is_damaged)


def _digest_by_the_rules(folder: Path) -> str:
    manifest = json.loads((folder / "manifest.json").read_text())
    arrays = {}
    for name, stored in manifest["arrays"].items():
        content = (folder / stored["file"]).read_bytes()
        if stored["dtype"] == "ragged":
            ends = np.load(folder / f"{name}_ends.npy").tolist()
            spans = [(ends[row - 1] if row else 0, ends[row]) for row in range(manifest["rows"])]
        else:
            array = np.load(folder / stored["file"])
            size, header = array.nbytes // len(array), len(content) - array.nbytes
            spans = [(header + size * row, header + size * (row + 1)) for row in range(len(array))]
        rows = [content[first:end] for first, end in spans]
        step = manifest["chunk_rows"]
        chunks = [
            hashlib.sha256(b"".join(rows[first : first + step])).hexdigest()
            for first in range(0, len(rows), step)
        ]
        arrays[name] = [stored["dtype"], stored["shape"], chunks]
    facts = [manifest["generator"], manifest["parameters"], manifest["chunk_rows"], arrays]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
