"""Text in two languages as WMT distributes it: two files, line by line translations of each other.

A line ends with a line feed and with nothing else: what Unicode also calls a line break stands
within sentences of real corpora.

The archives of WMT16 may be unpacked anywhere, and have folders of their own. So their files are
searched in all folders under the one that is given: ``europarl-v7.de-en.en`` is in ``training`` if
it is from WMT13, and in none if it is from the site of Europarl.

A test set is a pair of SGML files, of which the segments count: ``newstest2014-deen-src.en.sgm``
and ``newstest2014-deen-ref.de.sgm``. Entities such as ``&amp;`` stay as they are: the published
references have them too (sacrebleu's ``wmt14/full``).
"""

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from cepheid.reference.data.store import StoreError

LANGUAGES = ("en", "de")
SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.DOTALL | re.IGNORECASE)
TEST_SET_SIDES = ("src.en", "ref.de")
PIECE = 5000  # pairs that a process takes at a time, and rows of a chunk


@dataclass(frozen=True)
class Corpus:
    """Several pairs of files, one after the other: ``<name>.en`` and ``<name>.de`` each.

    ``starts`` are the numbers of their first pairs, and at the end the number of pairs in all.
    """

    folder: Path
    names: tuple[str, ...]
    starts: tuple[int, ...]

    def __len__(self) -> int:
        return self.starts[-1]

    def read_pair(self, number: int) -> tuple[str, str]:
        """Return a pair with single spaces between words; a side may be empty.

        Raises StoreError, which names file and line, if bytes are not UTF-8.
        """
        of = int(np.searchsorted(self.starts, number, side="right")) - 1
        line = number - self.starts[of]
        first, second = (
            " ".join(_decode_line(self.folder / f"{self.names[of]}.{language}", line).split())
            for language in LANGUAGES
        )
        return first, second

    def keep_first(self, pairs: int) -> "Corpus":
        """Return the same files, of which only the first pairs count."""
        return replace(self, starts=tuple(min(start, pairs) for start in self.starts))

    def count_lines(self) -> dict[str, int]:
        """Return the number of lines of each pair of files, by its name."""
        counts = np.diff(self.starts).tolist()
        return {Path(name).name: count for name, count in zip(self.names, counts, strict=True)}

    def locate_empty(self, number: int) -> str:
        """Return file and line of the first empty side of a pair: ``train.de, line 3``."""
        of = int(np.searchsorted(self.starts, number, side="right")) - 1
        language = LANGUAGES[self.read_pair(number).index("")]
        return f"{Path(self.names[of]).name}.{language}, line {number - self.starts[of] + 1:,}"


def open_corpus(folder: Path, names: Sequence[str]) -> Corpus:
    """Open pairs of files.

    Raises StoreError if a file is missing or empty, or if the two of a pair differ in their number
    of lines.
    """
    starts = [0]
    for name in names:
        paths = [folder / f"{name}.{language}" for language in LANGUAGES]
        counts = [len(_find_line_ends(path)) for path in paths]
        if counts[0] != counts[1]:
            raise StoreError(
                f"{paths[0]} has {counts[0]:,} lines, {paths[1]} has {counts[1]:,}: expected a "
                f"translation line by line. Line {min(counts) + 1:,} stands alone; unpack both "
                "files again."
            )
        starts.append(starts[-1] + counts[0])
    return Corpus(folder, tuple(names), tuple(starts))


def compute_digest(corpus: Corpus) -> str:
    """Return the SHA-256 over the names and contents of the files, wherever they are."""
    total = hashlib.sha256()
    for name in corpus.names:
        for language in LANGUAGES:
            with open(corpus.folder / f"{name}.{language}", "rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            total.update(f"{Path(name).name}.{language} {content}\n".encode())
    return total.hexdigest()


def _decode_line(path: Path, line: int) -> str:
    ends = _find_line_ends(path)
    raw = bytes(_map_file(path)[ends[line - 1] + 1 if line else 0 : ends[line]])
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise StoreError(
            f"{path}, line {line + 1:,}: byte {error.start + 1} of the line is no UTF-8 "
            f"(0x{raw[error.start]:02x}). Convert the file to UTF-8, e.g. with iconv, or fix that "
            "line, and prepare again."
        ) from error


@lru_cache(maxsize=16)
def _map_file(path: Path) -> np.memmap:
    try:
        return np.memmap(path, np.uint8, mode="r")
    except (OSError, ValueError) as error:  # ValueError: nothing is in it
        reason = error.strerror if isinstance(error, OSError) else "it is empty"
        raise StoreError(
            f"{path}: cannot be read ({reason}). Expected plain text, one sentence in a line; "
            "docs/your-data.md says where it comes from."
        ) from error


@lru_cache(maxsize=16)
def _find_line_ends(path: Path) -> np.ndarray:
    """Return the ends of the lines in bytes, (lines,): line feeds and the end of the file."""
    content = _map_file(path)
    ends = np.flatnonzero(content == ord("\n"))
    return ends if content[-1] == ord("\n") else np.append(ends, len(content))


def choose_files(folder: Path, names: Sequence[str], is_subset: bool = False) -> Sequence[str]:
    """Return the files of training text, of a subset those that are there."""
    there = [name for name in names if any(folder.rglob(f"{name}.{LANGUAGES[0]}"))]
    return there if is_subset and there else names


# Archives of WMT16 --------------------------------------------------------------------------------


def open_distributed(folder: Path, names: Sequence[str]) -> Corpus:
    """Open pairs of distributed files, wherever under ``folder`` they are.

    Raises StoreError as ``open_corpus`` does, and if a name has no file or several.
    """
    placed = []
    for name in names:
        path = locate(folder, f"{name}.{LANGUAGES[0]}").relative_to(folder)
        placed.append(str(path.with_name(name)))
    return open_corpus(folder, placed)


def locate(folder: Path, name: str) -> Path:
    """Return the file of that name in ``folder`` or below. Raises StoreError if it is not one."""
    found = sorted(path for path in folder.rglob(name) if path.is_file())
    if not found:
        for inner in (path for path in folder.rglob("*") if path.is_dir()):
            if not os.access(inner, os.R_OK | os.X_OK):  # rglob passes over it
                raise StoreError(f"{inner}: cannot be read; fix: ask its owner for the permission")
        raise StoreError(
            f"{folder / name}: there is no such file, nor in a folder below. Unpack the archive "
            "that has it into this folder; docs/your-data.md lists the archives."
        )
    if len(found) > 1:
        raise StoreError(f"{found[0]} and {found[1]}: two files of one name. Keep one of them.")
    return found[0]


def read_test_sets(folder: Path, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the sentences of test sets, one after the other, in English and in German.

    Raises StoreError as ``locate`` does, and if the files cannot be read, are not UTF-8, have no
    segments, or not as many in both languages.
    """
    sides: tuple[list[str], list[str]] = ([], [])
    for name in names:
        paths = [locate(folder, f"{name}-{side}.sgm") for side in TEST_SET_SIDES]
        english, german = map(_read_segments, paths)
        if len(english) != len(german):
            raise StoreError(
                f"{paths[0]} has {len(english):,} segments, {paths[1]} has {len(german):,}: "
                "expected one for one. Unpack both files again."
            )
        sides[0].extend(english)
        sides[1].extend(german)
    return sides


def _read_segments(path: Path) -> list[str]:
    """Return the text of the segments of an SGML file, with single spaces between words."""
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise StoreError(
            f"{path}: byte {error.start + 1:,} is no UTF-8 (0x{error.object[error.start]:02x}). "
            "Unpack the file again."
        ) from error
    segments = [" ".join(segment.split()) for segment in SEGMENT.findall(text)]
    if not segments:
        raise StoreError(f"{path}: there are no segments (<seg>) in it. Unpack the file again.")
    return segments
