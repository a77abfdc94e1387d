"""Digests that both the trainer and the checker compute: of files, and of a folder of code."""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

NOT_CODE = re.compile(r"README(\.[a-z]+)?|LICEN[CS]E(\.[a-z]+)?|COPYING(\.[a-z]+)?", re.IGNORECASE)
CHUNK_BYTES = 2**20


def of_file(path: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal. Raises OSError for a link, or where the file
    cannot be read."""
    digest = hashlib.sha256()
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def of_code(files: Mapping[str, str]) -> str:
    """Of a folder of code: SHA-256 over its files' names, relative to the folder with ``/``, and
    their digests, in the order of the names. README and licence are no code."""
    digest = hashlib.sha256()
    for name in sorted(files):
        if not NOT_CODE.fullmatch(name):
            digest.update(json.dumps([name, files[name]]).encode())
    return digest.hexdigest()


def files_of(folder: Path) -> dict[str, str]:
    """The digests of all files in a folder; what Python compiled and links are left out."""
    return {path.relative_to(folder).as_posix(): of_file(path) for path in _files(folder)}


def _files(folder: Path) -> Iterator[Path]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if is_left_out(entry.name):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _files(folder / entry.name)
        elif entry.is_file(follow_symlinks=False):
            yield folder / entry.name


def is_left_out(name: str) -> bool:
    """True for ``__pycache__``, which every run of the code changes."""
    return name == "__pycache__"
