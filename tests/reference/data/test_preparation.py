"""Preparing a dataset: interruptions, and what stands in the way."""

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cepheid.reference.data import disk, preparation, store, verification, videos, workers
from cepheid.reference.data.columns import Fixed
from cepheid.reference.data.preparation import Contents
from cepheid.reference.data.store import StoreError
from tests import assert_raises
from tests.full_disk import files_end_after
from tests.processes import have_ended
from tests.reference.data.numbered import (
    LAYOUT,
    PARAMETERS,
    ROWS,
    change_byte,
    draw,
    prepare,
    row_position,
)

ROOT = Path(__file__).resolve().parents[3]


def draw_slowly(pids: Path, rows: range) -> dict[str, np.ndarray]:
    """Leaves the worker's process id in the folder ``pids``."""
    (pids / str(os.getpid())).touch()
    time.sleep(0.1)
    return draw(rows)


def draw_from_killed_worker(rows: range) -> dict[str, np.ndarray]:
    if rows.start:
        os.kill(os.getpid(), signal.SIGKILL)
    return draw(rows)


def threads_of_worker(rows: range) -> dict[str, np.ndarray]:
    threads = [int(os.environ[name]) for name in workers.THREAD_VARIABLES]
    return {**draw(rows), "numbers": np.full(len(rows), max(threads), np.int64)}


class Interrupting:
    """Draws ``chunks`` chunks, then Ctrl-C."""

    def __init__(self, chunks: int, error: BaseException | None = None) -> None:
        self.chunks, self.error = chunks, error or KeyboardInterrupt()

    def __call__(self, rows: range) -> dict[str, np.ndarray]:
        if self.chunks == 0:
            raise self.error
        self.chunks -= 1
        return draw(rows)


class Counting:
    """Notes what is drawn."""

    def __init__(self) -> None:
        self.drawn: list[range] = []

    def __call__(self, rows: range) -> dict[str, np.ndarray]:
        self.drawn.append(rows)
        return draw(rows)


def interrupt(folder: Path, chunks: int = 5) -> Path:
    """Prepare so many chunks, then press Ctrl-C; return the unfinished folder."""
    with pytest.raises(KeyboardInterrupt):
        prepare(folder, draw=Interrupting(chunks))
    return disk.name_partial(folder)


# Preparing ----------------------------------------------------------------------------------------


def test_folder_holds_the_same_arrays_for_any_number_of_processes(
    prepared: Path, tmp_path: Path
) -> None:
    names = {path.name for path in prepared.iterdir()}
    assert names == {"stamps.npy", "labels.npy", "numbers.npy", "manifest.json"}
    assert not disk.name_partial(prepared).exists()
    assert prepare(tmp_path / "numbers", processes=2) == store.read_manifest(prepared)
    for name in LAYOUT:
        ours, theirs = (place / f"{name}.npy" for place in (tmp_path / "numbers", prepared))
        assert ours.read_bytes() == theirs.read_bytes()


@pytest.mark.parametrize("parameters", [{**PARAMETERS, "seed": 8}, {}])
def test_digest_covers_the_parameters(
    prepared: Path, tmp_path: Path, parameters: dict[str, Any]
) -> None:
    manifest = prepare(tmp_path / "numbers", parameters=parameters)
    assert manifest.digest != store.read_manifest(prepared).digest


def test_progress_counts_rows_and_what_is_prepared_returns_at_once(
    folder: Path, tmp_path: Path
) -> None:
    counting = Counting()
    assert prepare(folder, draw=counting) == store.read_manifest(folder)
    assert counting.drawn == []
    seen: list[tuple[int, int]] = []
    prepare(tmp_path / "new", on_progress=lambda done, total: seen.append((done, total)))
    assert seen == [(done, ROWS) for done in (0, 3, 6, 9, 12, 15, 18, 21, 23)]


def test_workers_use_one_thread_each_and_a_killed_one_is_told(tmp_path: Path) -> None:
    before = dict(os.environ)
    prepare(tmp_path / "numbers", draw=threads_of_worker, processes=2, rows=6)
    assert store.open_arrays(tmp_path / "numbers")["numbers"].max() == 1
    assert dict(os.environ) == before
    with pytest.raises(StoreError, match="worker process ended too early"):
        prepare(tmp_path / "killed", draw=draw_from_killed_worker, processes=2)


def test_wrong_rows_are_a_bug_of_the_generator(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="array numbers: float64"):
        prepare(tmp_path / "n", draw=lambda rows: {**draw(rows), "numbers": np.zeros(len(rows))})


# Interruptions ------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(chunks=st.lists(st.integers(0, 4), max_size=4))
def test_interruptions_leave_no_trace(
    prepared: Path, tmp_path_factory: pytest.TempPathFactory, chunks: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("interrupted") / "numbers"
    for number in chunks:
        with suppress(KeyboardInterrupt):
            prepare(folder, draw=Interrupting(number))
    assert prepare(folder) == store.read_manifest(prepared)
    assert verification.verify(folder)


def test_finished_chunks_are_not_drawn_again(tmp_path: Path) -> None:
    interrupt(tmp_path / "numbers")
    counting = Counting()
    seen: list[int] = []
    prepare(tmp_path / "numbers", draw=counting, on_progress=lambda done, _: seen.append(done))
    assert counting.drawn == [range(15, 18), range(18, 21), range(21, 23)]
    assert seen[0] == 15


@pytest.mark.parametrize("keep_bytes", [0, 30])
def test_killed_before_the_first_chunk(prepared: Path, tmp_path: Path, keep_bytes: int) -> None:
    disk.name_partial(tmp_path / "numbers").mkdir()
    journal = disk.name_partial(tmp_path / "numbers") / preparation.JOURNAL
    journal.write_bytes(b'{"format_version": 1, "chunk_rows'[:keep_bytes])
    assert prepare(tmp_path / "numbers") == store.read_manifest(prepared)


@pytest.mark.parametrize(
    ("file", "damage", "first"),
    [
        (preparation.JOURNAL, lambda path: os.truncate(path, path.stat().st_size - 10), 12),
        ("stamps.npy", lambda path: change_byte(path, row_position(path, 4)), 3),
        # The program may be killed before a file has its header, in it, or before its full size.
        ("labels.npy", Path.unlink, 0),
        *(("labels.npy", partial(os.truncate, length=length), 0) for length in (0, 20, 200)),
    ],
)
def test_what_is_lost_or_half_made_is_drawn_again(
    prepared: Path, tmp_path: Path, file: str, damage: Callable[[Path], object], first: int
) -> None:
    damage(interrupt(tmp_path / "numbers") / file)
    counting = Counting()
    assert prepare(tmp_path / "numbers", draw=counting) == store.read_manifest(prepared)
    assert counting.drawn[0] == range(first, first + 3)


def test_killed_preparation_goes_on(prepared: Path, tmp_path: Path) -> None:
    """SIGKILL, which nobody can catch: the workers end too, and another process finishes."""
    pids = tmp_path / "pids"
    pids.mkdir()
    program = (
        "import sys; from pathlib import Path; from functools import partial\n"
        "from tests.reference.data.test_preparation import draw_slowly, prepare\n"
        "if __name__ == '__main__':\n"
        "    slowly = partial(draw_slowly, Path(sys.argv[2]))\n"
        "    prepare(Path(sys.argv[1]), draw=slowly, processes=2)\n"
    )
    folder = tmp_path / "numbers"
    own = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, "-c", program, folder, pids], cwd=ROOT, env=own)
    journal = disk.name_partial(folder) / preparation.JOURNAL
    deadline = time.monotonic() + 30
    while not journal.exists() or journal.read_bytes().count(b"\n") < 3:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert have_ended([int(pid.name) for pid in pids.iterdir()], 30)
    assert not folder.exists()
    counting = Counting()
    assert prepare(folder, draw=counting) == store.read_manifest(prepared)
    assert 0 < len(counting.drawn) <= 6


# What stands in the way ---------------------------------------------------------------------------


def test_preparation_of_something_else_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfinished = interrupt(tmp_path / "numbers")
    with pytest.raises(StoreError, match=r"something else \(parameters.seed: 7 there, 8 asked"):
        prepare(tmp_path / "numbers", parameters={**PARAMETERS, "seed": 8})
    monkeypatch.setattr(np, "__version__", "99.0")
    with pytest.raises(StoreError, match=r"versions\.numpy: .* there, '99\.0' asked for"):
        prepare(tmp_path / "numbers")
    assert (unfinished / preparation.JOURNAL).exists()
    folder, sizes = tmp_path / "clips", {"train_samples": 4, "evaluation_samples": 1}
    videos.prepare(folder, videos.parameters_of(sizes), 1)
    with pytest.raises(StoreError, match=r"another dataset \(frames: 12 there, 13 asked"):
        videos.prepare(folder, videos.parameters_of({**sizes, "frames": 13}), 1)
    assert verification.verify(folder)


def test_folder_of_somebody_else_is_kept_and_a_place_that_is_none_told(tmp_path: Path) -> None:
    disk.name_partial(tmp_path / "numbers").mkdir()
    (disk.name_partial(tmp_path / "numbers") / "thesis.tex").touch()
    assert_raises(StoreError, r"holds thesis.tex but no journal", prepare, tmp_path / "numbers")
    (tmp_path / "file").touch()
    assert_raises(StoreError, "cannot be written", prepare, tmp_path / "file" / "numbers")


@pytest.mark.parametrize(
    "line", [b"\0\0", b"[]", b"{}", b'{"chunk": 99, "sha256": {"x": ""}}', b'{"chunk": 1e999}']
)
def test_damaged_journal_is_told(tmp_path: Path, line: bytes) -> None:
    with open(interrupt(tmp_path / "numbers", 2) / preparation.JOURNAL, "ab") as journal:
        journal.write(line + b"\n")
    assert_raises(StoreError, r"journal.jsonl: damaged", prepare, tmp_path / "numbers")


def test_two_preparations_do_not_collide(tmp_path: Path) -> None:
    with open(tmp_path / ".numbers.lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        assert_raises(StoreError, "another process is preparing it", prepare, tmp_path / "numbers")
    assert prepare(tmp_path / "numbers")


def test_no_space_is_told_before_anything_is_written_but_what_is_taken_not_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepared: Path
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=12_345_678))
    columns = {**LAYOUT, "stamps": Fixed(np.dtype(np.float16), (6, 64, 64))}
    with pytest.raises(StoreError, match=r"49 MB needed and 12 MB available") as raised:
        prepare(tmp_path / "numbers", contents=Contents(columns, draw), rows=970)
    assert str(tmp_path) in str(raised.value)
    assert not disk.name_partial(tmp_path / "numbers").exists()
    monkeypatch.undo()
    interrupt(tmp_path / "numbers")
    only = SimpleNamespace(free=disk.RESERVE_BYTES)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: only)
    assert prepare(tmp_path / "numbers") == store.read_manifest(prepared)


@pytest.mark.parametrize("number", [errno.EFBIG, errno.ENOSPC, errno.EDQUOT])
def test_disk_that_fills_up_is_told_and_the_same_goes_on(
    prepared: Path, tmp_path: Path, number: int
) -> None:
    says, options = r"the disk is full .* finished chunks are kept", {}
    limit: Any = nullcontext()
    if number == errno.EFBIG:  # as the system says it: enough for the journal, not for the stamps
        says, limit = r"the disk is full \(File too large\)", files_end_after(1500)
    else:
        options = {"draw": Interrupting(5, OSError(number, os.strerror(number)))}
    with limit:
        assert_raises(StoreError, says, prepare, tmp_path / "numbers", **options)
    assert prepare(tmp_path / "numbers") == store.read_manifest(prepared)
