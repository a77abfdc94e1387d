"""Writing files that a user may care about: whole or not at all, and never over another one."""

import contextlib
import os
from pathlib import Path

from rules.errors import UserError

PARTIAL = ".partial"


def write_new(path: Path, text: str) -> None:
    """Write ``text`` to a file that is not there yet.

    Raises UserError where it is there already, or cannot be written; then nothing is left behind.
    """
    if os.path.lexists(path):
        raise UserError(f"{path}: is there already; delete it or choose another name")
    replace(path, text)


def replace(path: Path, text: str) -> None:
    """Write ``text`` in place of what a tool of ours wrote there before.

    Raises UserError where it cannot be written; then what was there is as it was.
    """
    partial = path.with_name(path.name + PARTIAL)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        why = error.strerror or type(error).__name__
        raise UserError(
            f"{path}: cannot write there ({why}); make room or choose another place"
        ) from error
