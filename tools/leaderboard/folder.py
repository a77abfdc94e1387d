"""The folder of a site: what may be replaced, and replacing all of it at once."""

import ctypes
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath

from cepheid.leaderboard.build import FILE_LIST, GENERATOR
from cepheid.leaderboard.rows import index
from cepheid.leaderboard.rows.entry import Entry
from cepheid.rules.errors import UserError

EARLIER = "before"  # the site that is replaced, where two folders cannot be exchanged


def refuse_removal(output: Path, entries: Sequence[Entry], paths: Sequence[Path]) -> None:
    """Raise UserError where the site would have no result, or lose one of the site it replaces."""
    fix = "fix: restore the results, or pass --allow-removal if they were removed on purpose"
    if not entries:
        raise UserError(f"{', '.join(map(str, paths))}: the site would have no result; {fix}")
    if not (output / index.FILE).exists():
        return
    try:
        before = index.read_ids(output)
    except UserError as error:
        raise UserError(f"{error}; {fix}") from error
    gone = sorted(before - {entry.id for entry in entries})
    if gone:
        shown = ", ".join(gone[:5]) + (", …" if len(gone) > 5 else "")
        raise UserError(
            f"{output}: {len(gone)} of the {len(before)} results there would disappear ({shown}); "
            f"{fix}"
        )


def choose_output(path: Path) -> Path:
    """Return the folder that a site is written to by default. Raises UserError for a file."""
    if path.exists() and not path.is_dir():
        raise UserError(f"{path}: this is a file; choose the folder to write with --output DIR")
    return path / "leaderboard"


def refuse_foreign(output: Path) -> None:
    """Raise UserError where writing would replace what this command did not write."""
    if not (output.exists() or output.is_symlink()):
        return
    if output.is_symlink() or not output.is_dir():
        raise UserError(f"{output}: not a folder; choose another --output")
    there = sorted(_list_files(output))
    if not there and not any(output.iterdir()):
        return
    foreign = sorted(set(there) - _read_file_list(output))
    if foreign or "index.html" not in there:
        example = foreign[0] if foreign else next(iter(there), "folders")
        raise UserError(
            f"{output}: holds {example}, which this command did not write; "
            "choose another --output, or move that away"
        )
    generator = f'content="{GENERATOR}"'.encode()
    if generator not in (output / "index.html").read_bytes():
        raise UserError(
            f"{output}: index.html is not a leaderboard; choose another --output, or move it away"
        )


def _list_files(output: Path) -> Iterator[str]:
    """Yield all files below a folder, as ``files.txt`` names them; links count as files."""
    for path in output.rglob("*"):
        if path.is_symlink() or not path.is_dir():
            yield path.relative_to(output).as_posix()


def _read_file_list(output: Path) -> set[str]:
    """Return the files that an earlier call listed as its own."""
    try:
        return set((output / FILE_LIST).read_text(encoding="utf-8").splitlines())
    except (OSError, ValueError):
        return set()


def write(output: Path, files: Iterator[tuple[str, bytes]]) -> None:
    """Write a site beside the folder, then move it into place: no reader sees a half."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with _make_work(output) as work:
            fresh = work / "fresh"
            fresh.mkdir()
            for name, content in files:
                path = fresh / PurePosixPath(name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            if not (output.exists() and _exchange(fresh, output)):
                if output.exists():
                    output.rename(work / EARLIER)
                fresh.rename(output)
    except OSError as error:
        raise UserError(
            f"{output}: cannot be written ({error.strerror}); choose another --output"
        ) from error


def _name_work(output: Path) -> str:
    """Return how the name of the folder begins in which a site is written."""
    return f".{output.name}."


@contextmanager
def _make_work(output: Path) -> Iterator[Path]:
    """Yield a new folder beside ``output``, which is held and in the end deleted.

    The folder around them is held while that of another call may have no lock yet.
    """
    with ExitStack() as stack:
        with _lock(output.parent, fcntl.LOCK_EX):
            _clear_leftovers(output)
            work = tempfile.TemporaryDirectory(dir=output.parent, prefix=_name_work(output))
            path = Path(stack.enter_context(work))
            stack.enter_context(_lock(path))
        yield path


@contextmanager
def _lock(folder: Path, how: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> Iterator[None]:
    """Hold a folder within the block; it is free as soon as this process ends."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


def _clear_leftovers(output: Path) -> None:
    """Delete what killed calls left beside the folder, and give back a site that they had moved."""
    for left in list(output.parent.iterdir()):
        if not left.name.startswith(_name_work(output)) or left.is_symlink() or not left.is_dir():
            continue
        held = {path.name for path in left.iterdir()}
        if not held <= {"fresh", EARLIER}:
            continue  # not ours
        with suppress(BlockingIOError), _lock(left):
            if EARLIER in held and not output.exists():
                (left / EARLIER).rename(output)
            shutil.rmtree(left)


def _exchange(fresh: Path, output: Path) -> bool:
    """Exchange two folders in one step, so that there is a site at all times.

    Return False where the system or the file system cannot.
    """
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:  # another C library than glibc
        return False
    here, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE
    return bool(rename(here, bytes(fresh), here, bytes(output), exchange) == 0)
