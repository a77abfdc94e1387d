"""Digests that trainer and checker both compute: of files, of a folder of code, and seeds."""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

NOT_CODE = re.compile(r"README(\.[a-z]+)?|LICEN[CS]E(\.[a-z]+)?|COPYING(\.[a-z]+)?", re.IGNORECASE)
CHUNK_BYTES = 2**20


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal.

    Raises OSError for a symbolic link, or if the file cannot be read.
    """
    digest = hashlib.sha256()
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def digest_code(files: Mapping[str, str]) -> str:
    """Return the SHA-256 of a folder of code, in hexadecimal.

    ``files`` maps each file's name, relative to the folder and with ``/``, to its digest. Names and
    digests are hashed in the order of the names. README and licence are not code.
    """
    digest = hashlib.sha256()
    for name in sorted(files):
        if not NOT_CODE.fullmatch(name):
            digest.update(json.dumps([name, files[name]]).encode())
    return digest.hexdigest()


def digest_files(folder: Path) -> dict[str, str]:
    """Return the digest of each file in a folder; ``__pycache__`` and links are left out."""
    return {path.relative_to(folder).as_posix(): digest_file(path) for path in _find_files(folder)}


def _find_files(folder: Path) -> Iterator[Path]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if is_left_out(entry.name):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _find_files(folder / entry.name)
        elif entry.is_file(follow_symlinks=False):
            yield folder / entry.name


def is_left_out(name: str) -> bool:
    """Return True for ``__pycache__``, which changes whenever the code runs."""
    return name == "__pycache__"


def derive_seed(definition_digest: str, system: str, code_digest: str, index: int) -> int:
    """Return the seed of run ``index`` of a result, from 0 to 2**32 − 1 (rule T15).

    It is the first four bytes, most significant first, of the SHA-256 of the four fields joined by
    line feeds (UTF-8, the index in decimal). A submitter who tries several seeds to pick the best
    would have to change one of the fields. Raises ValueError for a negative index.
    """
    if index < 0:
        raise ValueError(f"run index is {index}, expected 0 or more")
    text = "\n".join((definition_digest, system, code_digest, str(index)))
    # A log may hold any string, lone surrogates too: they must give a seed, not an exception.
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:4], "big")
