"""The disk on which a dataset is written: its space, its errors, and who writes there."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from cepheid.reference.data.store import StoreError

RESERVE_BYTES = 2**20  # for manifest, journal and file headers
CANNOT_WRITE = (
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOENT, errno.EIO,
    errno.ENAMETOOLONG,
)  # fmt: skip


def require_space(folder: Path, needed_bytes: int, fix: str) -> None:
    """Raise StoreError if so many bytes, and RESERVE_BYTES, are not free on the disk of ``folder``.

    ``fix`` is the last sentence of the message.
    """
    free, needed = shutil.disk_usage(folder).free, RESERVE_BYTES + needed_bytes
    if free < needed:
        raise StoreError(
            f"{folder}: not enough disk space, {needed / 1e6:,.0f} MB needed and "
            f"{free / 1e6:,.0f} MB available. {fix}"
        )


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock ``folder`` for one preparation; the system frees the lock when the process ends.

    Raises StoreError if another process has it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(f".{folder.name}.lock"), blocking=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise StoreError(
            f"{folder}: another process is preparing it (it holds {lock.lock_file}). Wait for that "
            f"one to end, then try again."
        ) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def explain_disk_errors(
    folder: Path, advice: str = "prepare again; finished chunks are kept"
) -> Iterator[None]:
    """Turn errors of the system about the disk of ``folder`` into StoreError; bugs pass.

    The message advises to free some space and then ``advice``.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise StoreError(
                f"{error.filename or folder.parent}: the disk is full ({error.strerror}). Free "
                f"some space and {advice}."
            ) from error
        if error.errno in CANNOT_WRITE:
            raise StoreError(
                f"{error.filename or folder.parent}: cannot be written ({error.strerror}). Give "
                f"another place for the data, or the right to write here."
            ) from error
        raise


def name_partial(folder: Path) -> Path:
    """Return the folder that ``folder`` is until it is finished."""
    return folder.with_name(f"{folder.name}.partial")


def synchronize(folder: Path) -> None:
    """Write new names in ``folder`` through to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
