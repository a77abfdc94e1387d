"""Decides what a folder is, by what lies in it: a result, a submitter's folder, or several of them.

A name alone decides nothing, since a submitter may be called like a part of the layout. Two names
are an exception, because the rules fix them: what lies in ``submissions/`` are submitters' folders,
and a folder with a manifest is one. A folder that can be read in two ways is refused: of two
readings, one would pass over logs without a word.
"""

import os
from collections.abc import Iterator
from enum import Enum
from itertools import islice
from pathlib import Path

from cepheid.compliance.finding import escape
from cepheid.compliance.read.contents import LOG_NAME, README, is_like_log
from cepheid.compliance.read.decisions import FILE_NAME as DECISIONS
from cepheid.compliance.read.manifest import FILE_NAME as MANIFEST
from cepheid.rules.errors import UserError

ENTRIES_MAX = 10_000  # in one folder
SUBMISSIONS = "submissions"
PARTS = frozenset({"systems", "results"})  # of a submitter's folder


class Layout(Enum):
    """What a folder is."""

    RESULT = "the folder of one result"
    SUBMITTER = "the folder of one submitter"
    RESULTS = "the results of one submitter"
    SYSTEM = "the results of one system"
    SUBMISSIONS = "a folder of submitters' folders"


def find_layout(folder: Path) -> Layout:
    """Return what a folder is. Raises UserError where it can be read in two ways."""
    if folder.name == SUBMISSIONS:
        return Layout.SUBMISSIONS
    if folder.parent.name == SUBMISSIONS:
        return Layout.SUBMITTER
    here = {
        Layout.RESULT: _find_log(folder),
        Layout.SUBMITTER: _find_evidence(folder),
        Layout.SUBMISSIONS: _find_submitter(folder),
    }
    if (folder / MANIFEST).is_file() and not is_in_layout(folder):
        return Layout.SUBMITTER
    readings = {layout: path for layout, path in here.items() if path is not None}
    if len(readings) > 1:
        raise UserError(_explain_ambiguity(folder, readings))
    if readings:
        return next(iter(readings))
    return _find_part(folder)


def _find_part(folder: Path) -> Layout:
    """Return what a folder is that holds neither logs nor a submitter's folder."""
    names = {entry.name for entry in _list_folders(folder)}
    if is_in_layout(folder):
        return Layout.RESULT
    if "systems" in names or ("results" in names and _has_results(folder / "results")):
        return Layout.SUBMITTER
    if folder.name == "results" and _has_results(folder):
        return Layout.RESULTS
    if folder.parent.name == "results" and _has_results(folder.parent, folder.name):
        return Layout.SYSTEM
    return Layout.SUBMISSIONS


def is_in_layout(folder: Path) -> bool:
    """Return True for ``…/results/<system>/<benchmark>-<scale>-<division>``."""
    parents = folder.parents
    return len(parents) > 1 and parents[1].name == "results" and folder.name.count("-") >= 2


def find_strays(folder: Path) -> Iterator[Path]:
    """Find what lies beside the submitters' folders in ``submissions/``: all but two files.

    Of two folders whose names differ only in case, the second is no submitter's.
    """
    seen: set[str] = set()
    for entry in _list(folder) if folder.name == SUBMISSIONS else ():
        is_folder, name = entry.is_dir(follow_symlinks=False), entry.name.casefold()
        is_expected = name not in seen if is_folder else entry.name in (README, DECISIONS)
        if not is_expected and not entry.name.startswith("."):
            yield Path(entry.path)
        seen |= {name} if is_folder else set()


def find_lost(folder: Path, read: frozenset[str]) -> Path | None:
    """Find a submitter's folder that lies one level deeper than those that are ``read``."""
    others = (entry for entry in _list_folders(folder) if entry.name not in read)
    return next(filter(None, (_find_submitter(Path(entry.path)) for entry in others)), None)


def _explain_ambiguity(folder: Path, evidence: dict[Layout, Path]) -> str:
    readings = " or ".join(
        f"{layout.value}, because it holds {escape(str(path.relative_to(folder)))[:200]}"
        for layout, path in evidence.items()
    )
    return (
        f"{escape(str(folder))}: cannot tell what this folder is: {readings}; fix: move one of "
        f"them elsewhere, or move the submitters' folders into a folder named {SUBMISSIONS}"
    )


def _find_log(folder: Path) -> Path | None:
    names = (entry.name for entry in _list(folder) if entry.is_file(follow_symlinks=False))
    return next((folder / name for name in names if LOG_NAME.fullmatch(name)), None)


def _find_submitter(folder: Path) -> Path | None:
    """Find something that only a submitter's folder holds, in one of the folders of a folder."""
    inside = (_find_evidence(Path(entry.path)) for entry in _list_folders(folder))
    return next(filter(None, inside), None)


def _find_evidence(folder: Path) -> Path | None:
    """Find something that only a submitter's folder holds: a log, a description or a manifest."""
    entries = list(_list(folder))
    folders = {entry.name for entry in entries if entry.is_dir(follow_symlinks=False)}
    if PARTS.isdisjoint(folders):
        return None
    if any(e.name == MANIFEST and e.is_file(follow_symlinks=False) for e in entries):
        return folder / MANIFEST
    for entry in _list(folder / "systems"):
        is_description = entry.name.endswith(".json") and entry.name != MANIFEST
        if is_description and entry.is_file(follow_symlinks=False):
            return Path(entry.path)
    for system in _list_folders(folder / "results"):
        for result in _list_folders(Path(system.path)):
            for entry in _list(Path(result.path)):
                is_log = is_like_log(Path(entry.name)) and entry.is_file(follow_symlinks=False)
                if is_log and entry.name.endswith((".txt", ".partial")):
                    return Path(entry.path)
    return None


def _has_results(folder: Path, only_system: str | None = None) -> bool:
    """Return True where a folder named ``results`` has result folders two levels down."""
    return any(
        result.name.count("-") >= 2
        for system in _list_folders(folder)
        if only_system in (None, system.name)
        for result in _list_folders(Path(system.path))
    )


def _list_folders(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the folders in a folder; links and hidden ones are left out."""
    for entry in _list(folder):
        if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
            yield entry


def _list(folder: Path) -> list[os.DirEntry[str]]:
    """List what is in a folder, up to a bound; one that cannot be read has no entries."""
    try:
        with os.scandir(folder) as scanned:
            return sorted(islice(scanned, ENTRIES_MAX), key=lambda entry: entry.name)
    except OSError:
        return []
