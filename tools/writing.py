"""Writing files that a user may care about: whole or not at all, and never over another one."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rules.errors import UserError, cannot_write
from rules.host import atomic_write


def write_new(path: Path, text: str) -> None:
    """Write ``text`` to a file that is not there yet.

    Raises UserError where it is there already, or cannot be written; then nothing is left behind.
    """
    if os.path.lexists(path):
        raise UserError(f"{path}: is there already; delete it or choose another name")
    replace_file(path, text)


def replace_file(path: Path, text: str) -> None:
    """Write ``text`` in place of what a tool of ours wrote there before.

    Raises UserError where it cannot be written; then what was there is as it was.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, text)
    except OSError as error:
        raise cannot_write(path, error) from error


@contextmanager
def make_new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which is called ``path`` when it is whole, and is gone if it fails.

    It is filled beside the parent of ``path``, where nobody takes it for one of those that lie
    there. Raises UserError where ``path`` is there already, or cannot be written.
    """
    if os.path.lexists(path):
        raise UserError(f"{path}: is there already; change it, or move it away")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=path.parents[1], prefix=f".{path.name}-"))
        try:
            made.chmod(0o755)
            yield made
            made.rename(path)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    except OSError as error:
        raise cannot_write(path, error) from error
