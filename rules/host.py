"""What trainer, checker and tools all need of the machine: whole files, and its processors."""

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def atomic_write(path: Path, content: str | bytes) -> None:
    """Write ``content`` to ``path`` so that no reader ever sees half of it.

    Text is written as UTF-8. Raises OSError if the file cannot be written; then an older file of
    that name is unchanged.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def atomic_path(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that becomes ``path`` if the block succeeds.

    The block writes the file. The file is on the disk before it gets its name, so that a machine
    that stops cannot leave an empty one; ``sync=False`` omits this for data that can be made again.
    If the block fails, the temporary file is deleted.
    """
    # Several processes may write the same file, so each has a temporary file of its own.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield temporary
        if sync:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def usable_processors() -> int:
    """Return the number of processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
