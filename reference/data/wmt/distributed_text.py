"""Text as WMT distributes it: archives that were unpacked anywhere, and test sets in SGML.

The archives have folders of their own, so a file is searched in all folders under the one that is
given: ``europarl-v7.de-en.en`` is in ``training`` if it is from WMT13, and in none if it is from
the site of Europarl.

A test set is a pair of SGML files, of which the segments count: ``newstest2014-deen-src.en.sgm``
and ``newstest2014-deen-ref.de.sgm``. Entities such as ``&amp;`` stay as they are: the published
references have them too (sacrebleu's ``wmt14/full``).
"""

import re
from collections.abc import Sequence
from pathlib import Path

from cepheid.reference.data.store import StoreError
from cepheid.reference.data.wmt.parallel_text import LANGUAGES, Corpus, open_corpus

SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.DOTALL | re.IGNORECASE)
TEST_SET_SIDES = ("src.en", "ref.de")


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
        raise StoreError(
            f"{folder / name}: there is no such file, nor in a folder below. Unpack the archive "
            "that has it into this folder; reference/data/README.md lists the archives."
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
