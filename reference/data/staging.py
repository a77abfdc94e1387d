"""Stage a prepared dataset: copy it to a faster disk of this machine, and verify the copy.

The copy grows in ``<folder>.partial``, so that an interrupted one continues where it stopped. All
bytes of the copy are read back from the disk and digested before it gets its name.
"""

import filecmp
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from cepheid.reference.data import disk, store, verification
from cepheid.reference.data.store import MANIFEST, Manifest, OnProgress, StoreError
from cepheid.rules.host import atomic_write

PIECE_BYTES = 8 * 2**20
MB = 10**6
ATTEMPTS = 2  # the second one copies files again that a stopped machine has left incomplete


def stage(
    source: Path,
    target: Path,
    on_copy: OnProgress | None = None,
    on_verify: OnProgress | None = None,
) -> Manifest:
    """Copy the dataset in ``source`` to ``target``; return its manifest if the copy is the same.

    A copy that is there already is only verified. Processes that stage the same folder wait for
    each other. ``on_copy`` is called with MB done and in all, ``on_verify`` with rows.

    Raises StoreError if ``source`` is no finished dataset, if ``target`` or ``<target>.partial``
    holds something else or is damaged, or if the disk is full; nothing there is overwritten.
    """
    manifest = store.read_manifest(source)
    if target.resolve() == source.resolve():
        raise StoreError(f"{target}: the dataset is already there; choose another place to stage")
    with disk.explain_disk_errors(target, "stage again"), disk.lock_folder(target, is_patient=True):
        if target.exists():
            _compare(source, target, manifest, on_verify)
        else:
            _copy(source, target, manifest, on_copy, on_verify)
    return manifest


def _compare(source: Path, target: Path, manifest: Manifest, on_verify: OnProgress | None) -> None:
    """Raise StoreError unless ``target`` holds every byte of the dataset in ``source``."""
    found = store.read_manifest(target)
    if found.digest != manifest.digest:
        raise StoreError(
            f"{target}: holds another dataset (digest {found.digest}, expected {manifest.digest}); "
            "fix: stage elsewhere, or delete it"
        )
    if damaged := _find_damaged(source, target, manifest, on_verify):
        raise StoreError(
            f"{target / damaged[0]}: is not what lies in {source}; fix: delete {target}, and stage "
            "again"
        )


def _copy(
    source: Path,
    target: Path,
    manifest: Manifest,
    on_copy: OnProgress | None,
    on_verify: OnProgress | None,
) -> None:
    """Copy what is missing, verify all, and give the copy its name."""
    unfinished = disk.name_partial(target)
    _begin(source, unfinished)
    names = _list_files(source, manifest)
    damaged: Sequence[str] = ()
    for _ in range(ATTEMPTS):
        for name in damaged:
            (unfinished / name).unlink()
        missing = sum(
            (source / name).stat().st_size - _count_copied(source, unfinished, name)
            for name in names
        )
        disk.require_space(target.parent, missing, "Free some, or stage on another disk.")
        _copy_files(source, unfinished, names, on_copy)
        store.drop_caches(unfinished)  # read what is on the disk
        damaged = _find_damaged(source, unfinished, manifest, on_verify)
        if not damaged:
            break
    else:
        raise StoreError(
            f"{source / damaged[0]}: its copy differs from what was prepared, also after a second "
            "try; fix: look for damage with `cepheid data … --verify`, then prepare again"
        )
    disk.synchronize(unfinished)
    unfinished.rename(target)
    disk.synchronize(target.parent)


def _begin(source: Path, unfinished: Path) -> None:
    """Create or reopen a copy. Raises StoreError where something else is there."""
    with store.explain_system_errors(source / MANIFEST):
        content = (source / MANIFEST).read_bytes()
    path = unfinished / MANIFEST
    if not unfinished.exists():
        unfinished.mkdir()
    elif any(unfinished.iterdir()) and not (path.is_file() and path.read_bytes() == content):
        raise StoreError(
            f"{unfinished}: is no half copy of {source}; fix: delete it, or stage elsewhere"
        )
    atomic_write(path, content)


def _list_files(source: Path, manifest: Manifest) -> list[str]:
    """Return the names of the files to copy: the arrays, then what lies beside them."""
    arrays = [array.file for array in manifest.arrays.values()]
    known = {MANIFEST, *arrays}
    others = [path.name for path in source.iterdir() if path.is_file() and path.name not in known]
    return [*arrays, *sorted(others)]


def _count_copied(source: Path, unfinished: Path, name: str) -> int:
    """Return the bytes of a file that are copied; none if there are more than in the source."""
    path = unfinished / name
    copied = path.stat().st_size if path.exists() else 0
    return copied if copied <= (source / name).stat().st_size else 0


def _copy_files(
    source: Path, unfinished: Path, names: Sequence[str], on_copy: OnProgress | None
) -> None:
    """Copy the rest of every file, and write it through to the disk."""
    total = sum((source / name).stat().st_size for name in names)
    on_copy = on_copy or (lambda done, total: None)
    done = 0
    for name in names:
        start = _count_copied(source, unfinished, name)
        done += start
        with ExitStack() as stack:
            with store.explain_system_errors(source / name):
                reader = stack.enter_context(open(source / name, "rb", buffering=0))
            writer = stack.enter_context(open(unfinished / name, "ab" if start else "wb"))
            reader.seek(start)
            while piece := _read_piece(reader.fileno(), source / name):
                writer.write(piece)
                done += len(piece)
                if done < total:
                    on_copy(done // MB, total // MB + 1)
            writer.flush()
            os.fsync(writer.fileno())
    on_copy(total // MB + 1, total // MB + 1)


def _read_piece(descriptor: int, path: Path) -> bytes:
    with store.explain_system_errors(path):
        return os.read(descriptor, PIECE_BYTES)


def _find_damaged(
    source: Path, copy: Path, manifest: Manifest, on_verify: OnProgress | None
) -> list[str]:
    """Return the names of the files of ``copy`` that are not what was prepared."""
    changes = verification.find_changes(copy, on_progress=on_verify)
    arrays = {manifest.arrays[name].file for name, _ in changes}
    others = _list_files(source, manifest)[len(manifest.arrays) :]
    is_same = {
        name: (copy / name).is_file() and filecmp.cmp(source / name, copy / name, shallow=False)
        for name in others
    }
    return [*sorted(arrays), *(name for name in others if not is_same[name])]
