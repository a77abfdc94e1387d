"""Preparing a dataset: writing the folder that ``store`` reads.

Preparation writes to ``<folder>.partial`` next to it, chunk by chunk, and notes each finished chunk
in a journal, so that an interrupted preparation continues where it stopped. The finished folder
appears in one step. A lock on ``.<folder>.lock`` keeps two preparations of one folder apart.

What is written depends on the generator and its parameters only: not on the number of processes,
not on interruptions.
"""

import errno
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cepheid.reference.data import disk, store
from cepheid.reference.data.columns import Column, Fixed, Known, Ragged, Rows
from cepheid.reference.data.disk import explain_disk_errors, lock_folder, name_partial, synchronize
from cepheid.reference.data.store import Manifest, OnProgress, StoreError
from cepheid.reference.data.workers import map_in_processes

JOURNAL = "journal.jsonl"

Draw = Callable[[range], Mapping[str, Rows]]
Layout = Mapping[str, Column | Known]
Judge = Callable[[Path], None]


@dataclass(frozen=True)
class Contents:
    """What a preparation writes into a folder.

    ``columns`` are the arrays by name. ``draw(range)`` returns those rows of each that is not
    known, the same ones whenever and wherever it is called, and can be pickled. The manifest has
    ``facts`` beside the parameters, and the versions of ``packages`` beside those of Python and
    NumPy. ``judge`` is called with the folder, complete but for its name, and raises StoreError if
    it must not be used; then nothing of it is kept. Writing is the last of so many ``parts`` of the
    work. ``rows`` are those that there are, if that is not as many as were asked for.
    """

    columns: Layout
    draw: Draw
    facts: Mapping[str, Any] = field(default_factory=dict)
    packages: Sequence[str] = ()
    chunk_rows: int = 250
    judge: Judge | None = None
    parts: int = 1
    rows: int | None = None


def prepare(
    folder: Path,
    generator: str,
    parameters: Mapping[str, Any],
    rows: int,
    contents: Contents,
    processes: int | None = None,
    on_progress: OnProgress | None = None,
) -> Manifest:
    """Prepare ``folder``; continue an interrupted preparation, or return if it is finished.

    ``parameters`` is plain JSON; with the facts of ``contents`` it says all that the rows depend
    on. ``processes`` defaults to the usable processors. ``on_progress`` is called with rows done
    and rows in all.

    Raises StoreError if ``<folder>.partial`` belongs to other parameters, another preparation of it
    is under way, the disk is full or cannot be written, or a worker was killed.
    """
    plan = _Plan(
        generator=generator,
        parameters=store.convert_to_json({**parameters, **contents.facts}),
        versions=store.find_versions(contents.packages),
        columns=_add_ends(contents.columns),
        rows=rows,
        chunk_rows=contents.chunk_rows,
    )
    on_progress = on_progress or (lambda done, total: None)
    with explain_disk_errors(folder), lock_folder(folder):
        if folder.exists():  # another preparation finished it while we came here
            return store.read_manifest(folder)
        unfinished = name_partial(folder)
        finished = _begin(unfinished, plan)
        todo = [chunk for chunk in range(len(plan.chunks)) if chunk not in finished]
        done = rows - sum(len(plan.chunks[chunk]) for chunk in todo)
        write = partial(_write_chunk, unfinished, plan, contents.draw)
        on_progress(done, rows)
        with (
            open(unfinished / JOURNAL, "ab") as journal,
            closing(map_in_processes(write, todo, processes, unfinished)) as written,
        ):
            for chunk, digests in written:
                finished[chunk] = digests
                _append(journal.fileno(), {"chunk": chunk, "sha256": digests})
                done += len(plan.chunks[chunk])
                on_progress(done, rows)
        return _publish(folder, plan, finished, contents.judge)


def _add_ends(columns: Layout) -> dict[str, Column | Known]:
    """Return the columns; after each ragged one comes a column with the ends of its rows."""
    layout: dict[str, Column | Known] = {}
    for name, column in columns.items():
        layout[name] = column
        kind = column.column if isinstance(column, Known) else column
        if isinstance(kind, Ragged):
            layout[store.name_ends(name)] = Known(Fixed(kind.ends.dtype), kind.ends)
    return layout


@dataclass(frozen=True)
class _Plan:
    generator: str
    parameters: Mapping[str, Any]
    versions: Mapping[str, str]
    columns: Layout
    rows: int
    chunk_rows: int

    @property
    def layout(self) -> dict[str, Column]:
        return {
            name: column.column if isinstance(column, Known) else column
            for name, column in self.columns.items()
        }

    @property
    def chunks(self) -> list[range]:
        return store.split_rows(self.rows, self.chunk_rows)

    @property
    def header(self) -> Any:
        """The journal's first line. Chunks of two GalSim versions must not meet in one folder."""
        facts = {
            "format_version": store.FORMAT_VERSION,
            "chunk_rows": self.chunk_rows,
            "generator": self.generator,
            "parameters": self.parameters,
            "rows": self.rows,
            "arrays": {name: column.layout_json for name, column in self.layout.items()},
            "versions": self.versions,
        }
        return store.convert_to_json(facts)


def _begin(unfinished: Path, plan: _Plan) -> dict[int, dict[str, str]]:
    """Create or reopen ``<folder>.partial``; return the digests of its finished chunks."""
    lines = _read_journal(unfinished / JOURNAL, len(plan.chunks))
    difference = store.find_first_difference(lines[0], plan.header) if lines else ""
    if difference:
        raise StoreError(
            f"{unfinished}: an unfinished preparation of something else ({difference}). To drop it "
            f"and start again, delete that folder; to continue it, use its settings."
        )
    disk.require_space(
        unfinished.parent,
        _count_missing_bytes(unfinished, plan),
        "Free some, or prepare the dataset on another disk.",
    )
    unfinished.mkdir(exist_ok=True)
    if not lines:
        strangers = sorted(path.name for path in unfinished.iterdir() if path.name != JOURNAL)
        if strangers:
            raise StoreError(
                f"{unfinished}: holds {strangers[0]} but no journal, so it is no preparation that "
                f"can go on. Delete it, or move it away, and start again."
            )
        with open(unfinished / JOURNAL, "wb") as journal:
            _append(journal.fileno(), plan.header)
    for name in plan.layout:
        _allocate(unfinished, name, plan)
    synchronize(unfinished)
    # Digested again: the journal may have outlived data, or a file may have been made anew.
    return {
        line["chunk"]: line["sha256"]
        for line in lines[1:]
        if line["sha256"] == _digest_chunk(unfinished, plan, line["chunk"])
    }


def _read_journal(path: Path, chunks: int) -> list[Any]:
    """Return all complete lines of the journal: the header, then finished chunks.

    A line that an interruption left incomplete is cut off.
    """
    if not path.exists():
        return []
    text = path.read_bytes()
    complete = text[: text.rfind(b"\n") + 1]
    if len(complete) < len(text):
        os.truncate(path, len(complete))
    try:
        lines = [json.loads(line) for line in complete.splitlines()]
        if any(line["chunk"] not in range(chunks) or not line["sha256"] for line in lines[1:]):
            raise ValueError("a chunk that is none")
        return lines
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise StoreError(
            f"{path}: damaged ({error}). Delete {path.parent} and start again."
        ) from error


def _count_missing_bytes(unfinished: Path, plan: _Plan) -> int:
    """Return the bytes of disk space that the files still need."""
    missing = 0
    for name, column in plan.layout.items():
        path = unfinished / column.name_file(name)
        allocated = path.stat().st_blocks * 512 if path.exists() else 0
        missing += max(0, column.count_bytes(plan.rows) - allocated)
    return missing


def _allocate(unfinished: Path, name: str, plan: _Plan) -> None:
    """Create the array's file at its full size, with its disk space reserved, if missing."""
    column = plan.layout[name]
    path = unfinished / column.name_file(name)
    if column.is_at(path, plan.rows):
        return
    column.create(path, plan.rows)
    with open(path, "r+b") as file:
        _reserve(file.fileno(), path.stat().st_size)
        os.fsync(file.fileno())


def _reserve(descriptor: int, size_bytes: int) -> None:
    """Reserve the disk space now, if system and file system support it."""
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
    except AttributeError:
        pass
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise


def _write_chunk(unfinished: Path, plan: _Plan, draw: Draw, chunk: int) -> dict[str, str]:
    """Draw one chunk and write it to the disk; return the digest of each array's rows."""
    rows = plan.chunks[chunk]
    known = {
        name: each.take(rows) for name, each in plan.columns.items() if isinstance(each, Known)
    }
    drawn = {**draw(rows), **known}
    digests = {}
    for name, column in plan.layout.items():
        values = column.flatten(name, rows, drawn[name])
        path = unfinished / column.name_file(name)
        # Written, not copied into a memory map: a full disk is then an error and not a signal.
        with open(path, "r+b") as file:
            file.seek(column.find_span(path, rows)[0])
            file.write(values.data)
            file.flush()
            os.fsync(file.fileno())
        digests[name] = store.compute_sha256(values)
    return digests


def _digest_chunk(unfinished: Path, plan: _Plan, chunk: int) -> dict[str, str]:
    digests = {}
    for name, column in plan.layout.items():
        path = unfinished / column.name_file(name)
        start, stop = column.find_span(path, plan.chunks[chunk])
        digests[name] = store.compute_sha256(np.memmap(path, np.uint8, mode="r")[start:stop])
    return digests


def _publish(
    folder: Path, plan: _Plan, finished: Mapping[int, Mapping[str, str]], judge: Judge | None
) -> Manifest:
    """Write the manifest and rename the folder to its final name."""
    unfinished = name_partial(folder)
    arrays = {}
    for name, column in plan.layout.items():
        chunks = tuple(finished[chunk][name] for chunk in range(len(plan.chunks)))
        arrays[name] = column.make_entry(unfinished / column.name_file(name), plan.rows, chunks)
    manifest = Manifest(
        generator=plan.generator,
        parameters=plan.parameters,
        versions=plan.versions,
        rows=plan.rows,
        chunk_rows=plan.chunk_rows,
        arrays=arrays,
        digest="",
    )
    store.write_manifest(unfinished, manifest)
    try:
        if judge:
            judge(unfinished)
    except StoreError:
        shutil.rmtree(unfinished)  # the user fixes the source, and all of it is read again
        raise
    synchronize(unfinished)
    unfinished.rename(folder)
    synchronize(folder.parent)
    (folder / JOURNAL).unlink()
    return store.read_manifest(folder)


def _append(descriptor: int, line: Any) -> None:
    """Append a line to the journal and write it through to the disk."""
    rest = json.dumps(line).encode() + b"\n"
    while rest:  # a disk that becomes full takes a part before it refuses
        rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)
