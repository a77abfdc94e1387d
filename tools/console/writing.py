"""Files and folders that belong to a user: written completely or not at all, never replaced."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cepheid.rules.errors import UserError, cannot_write
from cepheid.rules.host import atomic_write


def write_new(path: Path, text: str) -> None:
    """Write ``text`` to a file that is not there yet.

    Raises UserError where it already exists, or cannot be written; then nothing is left behind.
    """
    if os.path.lexists(path):
        raise UserError(f"{path}: already exists; delete it or choose another name")
    replace_file(path, text)


def replace_file(path: Path, text: str) -> None:
    """Write ``text`` to a file that an earlier call of the same tool may have written.

    Raises UserError where it cannot be written; then the earlier file is unchanged.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, text)
    except OSError as error:
        raise cannot_write(path, error) from error


@contextmanager
def make_new_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to fill, which becomes ``path`` if the block succeeds, else is deleted.

    It is filled beside the parent of ``path``, so that no tool takes it for one of the folders
    there. Raises UserError where ``path`` already exists, or cannot be written.
    """
    if os.path.lexists(path):
        raise UserError(f"{path}: already exists; change it, or move it away")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=path.parents[1], prefix=f".{path.name}-"))
        try:
            folder.chmod(0o755)
            yield folder
            folder.rename(path)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    except OSError as error:
        raise cannot_write(path, error) from error
