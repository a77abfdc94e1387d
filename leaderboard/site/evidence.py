"""Where the logs and the code behind a result are for whoever reads the site.

They lie beside the site, at an address, or in the site itself as copies. A copy is text, whatever a
submitter called it: its name has one dot and ends in ``.txt``, so that no server takes it for a
page or a program and no browser runs it.
"""

import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from cepheid.compliance.finding import escape
from cepheid.leaderboard.rows.entry import Entry, make_slug
from cepheid.rules.errors import UserError

FOLDER = "logs"
COPIED_BYTES_MAX = 64 * 2**20  # of one file
COPIED_FILES_MAX = 2_000  # of one folder
COPIED_TOTAL_BYTES_MAX = 8 * 2**30  # of a site; a round of MLPerf has less than a tenth
DEPTH_MAX = 16
ADDRESS = re.compile(r"https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9._~%!$&()*+,;=:@/-]*)?")


@dataclass(frozen=True)
class CopiedFile:
    """A file of a submission. ``name`` is its name in its folder, ``copy`` that in the site.

    ``why_not`` says why there is no copy, or is empty.
    """

    path: Path
    name: str
    size_bytes: int
    copy: str
    why_not: str = ""

    def read(self) -> bytes:
        """Read the file, no further than it was listed, and never through a link."""
        handle = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            return file.read(self.size_bytes)


@dataclass(frozen=True)
class CopiedFolder:
    """The folder of a result, or the code of a benchmark; ``page`` lists what it holds."""

    path: Path
    title: str
    page: str
    files: tuple[CopiedFile, ...]


@dataclass(frozen=True)
class Evidence:
    """Gives pages their links to files of submissions.

    ``link`` returns the link from a page to a file or folder, empty where there is nothing to see;
    it is quoted, so that no folder's name can be taken for a scheme or for markup. ``folders`` are
    those that the site holds copies of.
    """

    link: Callable[[str, Path], str]
    folders: tuple[CopiedFolder, ...] = ()


def link_beside(folder: Path) -> Evidence:
    """Leave the files where they are; ``folder``, where the site stands, stays beside them."""

    def link(page: str, path: Path) -> str:
        here = os.path.dirname(os.path.join(os.path.abspath(folder), page))
        return _quote(os.path.relpath(os.path.abspath(path), here))

    return Evidence(link)


def link_remote(address: str, root: Path) -> Evidence:
    """Link to an address, where the files are in the folders in which they lie below ``root``.

    What lies outside of the root has no link.
    """

    def link(page: str, path: Path) -> str:
        inside = os.path.relpath(os.path.abspath(path), os.path.abspath(root))
        if inside == os.curdir:
            return address
        is_outside = Path(inside).parts[0] == os.pardir
        return "" if is_outside else f"{address.rstrip('/')}/{_quote(inside)}"

    return Evidence(link)


def copy_folders(entries: Sequence[Entry]) -> Evidence:
    """List what the site will hold copies of: the folders of all results, and their code.

    Raises UserError where that is too much for a site.
    """
    folders: dict[str, CopiedFolder] = {}
    for entry in entries:
        home = entry.judged.folder.path
        folders[os.path.abspath(home)] = _list_copies(home, f"{FOLDER}/{entry.id}", entry.id)
        if entry.code and os.path.abspath(entry.code) not in folders:
            # Two systems may share their code; it stands beside the result of the first.
            place = f"{FOLDER}/{entry.id}~code"
            folders[os.path.abspath(entry.code)] = _list_copies(
                entry.code, place, f"code of {entry.id}"
            )
    copied = [f for folder in folders.values() for f in folder.files if not f.why_not]
    total = sum(file.size_bytes for file in copied)
    if total > COPIED_TOTAL_BYTES_MAX:
        raise UserError(
            f"--logs copy: the {len(copied):,} files of logs and code hold {total:,} bytes, more "
            f"than the {COPIED_TOTAL_BYTES_MAX:,} that a site may hold; fix: put them on a server "
            "and give its address, --logs https://…, or leave them where they are, --logs link"
        )
    places = {path: folder.page for path, folder in folders.items()}
    places |= {os.path.abspath(file.path): file.copy for file in copied}

    def link(page: str, path: Path) -> str:
        place = places.get(os.path.abspath(path))
        return "" if place is None else _quote(os.path.relpath(place, os.path.dirname(page) or "."))

    return Evidence(link, tuple(folders.values()))


def _list_copies(folder: Path, place: str, title: str) -> CopiedFolder:
    """List the files of a folder and below it; links, devices and hidden files are left out."""
    taken = {"files.html"}
    files: list[CopiedFile] = []
    for path, size_bytes in _walk(folder):
        name = path.relative_to(folder).as_posix()
        copy = _choose_name(name, taken)
        why_not = ""
        if size_bytes > COPIED_BYTES_MAX:
            why_not = f"larger than {COPIED_BYTES_MAX // 2**20} MiB"
        elif not os.access(path, os.R_OK):
            why_not = "cannot be read"
        elif len(files) >= COPIED_FILES_MAX:
            why_not = f"more than {COPIED_FILES_MAX:,} files"
        files.append(CopiedFile(path, escape(name), size_bytes, f"{place}/{copy}", why_not))
    return CopiedFolder(folder, title, f"{place}/files.html", tuple(files))


def _walk(folder: Path, depth: int = 0) -> Iterator[tuple[Path, int]]:
    """Yield the files below a folder with their sizes, in the order of their names."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        try:
            status = entry.stat(follow_symlinks=False)
        except OSError:  # it was moved meanwhile
            continue
        if stat.S_ISDIR(status.st_mode) and depth < DEPTH_MAX:
            yield from _walk(Path(entry.path), depth + 1)
        elif stat.S_ISREG(status.st_mode):
            yield Path(entry.path), status.st_size


def _choose_name(name: str, taken: set[str]) -> str:
    """Choose the name of a copy: one dot, ``.txt``; file systems that ignore case see no twins."""
    plain = make_slug(re.sub(r"[./]", "_", name.removesuffix(".txt"))) or "file"
    chosen, number = f"{plain}.txt", 1
    while chosen.casefold() in taken:
        number += 1
        chosen = f"{plain}~{number}.txt"
    taken.add(chosen.casefold())
    return chosen


def find_evidence(
    choice: str, folder: Path, entries: Sequence[Entry], given: Sequence[Path]
) -> Evidence:
    """Return where the files are: ``link`` leaves them, ``copy`` copies them, else an address.

    The address stands for the path that was given, or for what several paths have in common.
    Raises UserError for anything else.
    """
    if choice == "link":
        return link_beside(folder)
    if choice == "copy":
        return copy_folders(entries)
    if not ADDRESS.fullmatch(choice):
        raise UserError(
            f"--logs {escape(choice)[:100]}: neither copy nor link nor an address that begins with "
            "https://; fix: give one of them"
        )
    root = os.path.commonpath([os.path.abspath(path) for path in given])
    return link_remote(choice, Path(root))


def _quote(path: str) -> str:
    return quote(Path(path).as_posix(), errors="surrogateescape")
