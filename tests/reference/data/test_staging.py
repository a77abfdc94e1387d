"""Copies of prepared datasets: whole, resumed, damaged, in the way of something else."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cepheid.reference.data import disk, preparation, staging, store
from cepheid.reference.data.columns import Fixed, Ragged
from cepheid.reference.data.preparation import Contents
from cepheid.reference.data.store import StoreError

ROWS, CHUNK_ROWS = 10, 4
ENDS = np.cumsum(np.full(ROWS, 3, np.int64))


def draw(rows: range) -> dict[str, Any]:
    text = b"".join(f"{row:03}".encode() for row in rows)
    return {"text": text, "number": np.arange(rows.start, rows.stop, dtype=np.int32)}


CONTENTS = Contents(
    {"text": Ragged(ENDS), "number": Fixed(np.dtype(np.int32))}, draw, chunk_rows=CHUNK_ROWS
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A dataset of two arrays, one of them ragged, and a file beside them."""
    folder = tmp_path / "shared" / "numbers"
    preparation.prepare(folder, "none", {}, ROWS, CONTENTS, 1)
    (folder / "vocabulary.model").write_bytes(b"words")
    return folder


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_copy_is_the_same(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "local" / "numbers"
    copied, verified = [], []
    staging.stage(
        source, target, lambda *done: copied.append(done), lambda *done: verified.append(done)
    )
    assert read_files(target) == read_files(source)
    assert copied[-1] == (1, 1)
    assert verified[-1] == (ROWS, ROWS)
    assert [path.name for path in target.parent.iterdir() if path.is_dir()] == ["numbers"]


def test_a_copy_that_is_there_is_only_verified(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "local" / "numbers"
    staging.stage(source, target)
    before = (target / "number.npy").stat()
    assert staging.stage(source, target) == store.read_manifest(source)
    assert (target / "number.npy").stat() == before


def begin_copy(source: Path, target: Path) -> Path:
    unfinished = disk.name_partial(target)
    unfinished.mkdir(parents=True)
    shutil.copy(source / store.MANIFEST, unfinished)
    return unfinished


def test_an_interrupted_copy_continues(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "local" / "numbers"
    content = (source / "text.bin").read_bytes()
    (begin_copy(source, target) / "text.bin").write_bytes(content[:13])
    read, read_piece = [], staging._read_piece

    def read_and_note(descriptor: int, path: Path) -> bytes:
        piece = read_piece(descriptor, path)
        read.append((path.name, len(piece)))
        return piece

    monkeypatch.setattr(staging, "_read_piece", read_and_note)
    staging.stage(source, target)
    assert read_files(target) == read_files(source)
    assert read[0] == ("text.bin", len(content) - 13)


@pytest.mark.parametrize("name", ["text.bin", "number.npy", "vocabulary.model"])
def test_files_that_a_stopped_machine_left_incomplete_are_copied_again(
    name: str, source: Path, tmp_path: Path
) -> None:
    target = tmp_path / "local" / "numbers"
    content = (source / name).read_bytes()
    (begin_copy(source, target) / name).write_bytes(content[:-3] + bytes(3))
    staging.stage(source, target)
    assert read_files(target) == read_files(source)


def test_a_damaged_source_is_told(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "local" / "numbers"
    content = (source / "text.bin").read_bytes()
    (source / "text.bin").write_bytes(content[:-1] + b"X")
    with pytest.raises(StoreError, match=r"text\.bin: its copy differs .* --verify"):
        staging.stage(source, target)
    assert not target.exists()


def test_a_damaged_copy_is_told_and_kept(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "local" / "numbers"
    staging.stage(source, target)
    for name in ("text.bin", "vocabulary.model"):
        content = (target / name).read_bytes()
        (target / name).write_bytes(content[:-1] + b"X")
        with pytest.raises(StoreError, match=rf"{name}: is not what lies in .*; fix: delete"):
            staging.stage(source, target)
        assert (target / name).read_bytes()[-1:] == b"X"
        (target / name).write_bytes(content)


def test_nothing_else_is_overwritten(source: Path, tmp_path: Path) -> None:
    other = tmp_path / "local" / "numbers"
    preparation.prepare(other, "none", {"seed": 1}, ROWS, CONTENTS, 1)
    before = read_files(other)
    with pytest.raises(StoreError, match=r"holds another dataset \(digest .*, expected "):
        staging.stage(source, other)
    assert read_files(other) == before
    disk.name_partial(other).mkdir()
    (disk.name_partial(other) / preparation.JOURNAL).write_text("{}")
    shutil.rmtree(other)
    with pytest.raises(StoreError, match=r"\.partial: is no half copy of .*; fix: delete it"):
        staging.stage(source, other)
    with pytest.raises(StoreError, match="already there"):
        staging.stage(source, source)
    with pytest.raises(StoreError, match="there is no such folder"):
        staging.stage(tmp_path / "absent", tmp_path / "local" / "absent")


def test_a_disk_that_is_too_small(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = SimpleNamespace(total=100, used=0, free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(StoreError, match=r"not enough disk space, 1 MB needed .* another disk"):
        staging.stage(source, tmp_path / "local" / "numbers")
