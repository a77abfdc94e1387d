"""Digests that trainer and checker both compute: of files, of a folder of code, and seeds."""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

NOT_CODE = re.compile(r"(README|LICEN[CS]E|COPYING)(\.(md|txt|rst))?", re.IGNORECASE)
"""Text at the top of a folder of code. A README.py or a LICENSE.so is code like any other."""

BYTE_CODE = re.compile(r"__pycache__|.*\.py[co]", re.IGNORECASE | re.DOTALL)
"""What Python runs instead of the source that people review."""

CHUNK_BYTES = 2**20
UNCONFIRMED = "unconfirmed"  # in place of the digest of a file that authors of a definition lack


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


def find_unbound(folder: Path) -> Iterator[tuple[Path, str]]:
    """Find what could run in a folder of code although its digest does not cover it, and say why.

    These are links, whose targets may change, byte code, and texts that are executable.
    """
    entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    modes = [entry.stat(follow_symlinks=False).st_mode for entry in entries]
    for entry, mode in zip(entries, modes, strict=True):
        if BYTE_CODE.fullmatch(entry.name):
            yield folder / entry.name, "byte code, which runs instead of the source"
        elif stat.S_ISDIR(mode):
            yield from find_unbound(folder / entry.name)
        elif not stat.S_ISREG(mode):
            yield folder / entry.name, "a link or a device, which is not part of the folder"
        elif has_modes(modes) and is_executable_text(entry.name, mode):
            yield folder / entry.name, "a text that is executable, which is not part of the digest"


def has_modes(modes: Sequence[int]) -> bool:
    """Return False where all files are executable, as on file systems that do not keep it."""
    return any(stat.S_ISREG(mode) and not mode & 0o111 for mode in modes)


def is_executable_text(name: str, mode: int) -> bool:
    """Return True for a README or a licence that a shell would run."""
    return NOT_CODE.fullmatch(name) is not None and bool(mode & 0o111)


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


def derive_seed(nonce: str, submitter: str, system: str, benchmark: str, index: int) -> int:
    """Return the seed of run ``index`` of a result, from 0 to 2**32 − 1 (rule T15).

    It is the first four bytes, most significant first, of the SHA-256 of the five fields joined by
    line feeds (UTF-8, the index in decimal). ``nonce`` is that of the round, ``benchmark`` its name
    and scale, as in ``kfac-mini``. Raises ValueError for a negative index.
    """
    if index < 0:
        raise ValueError(f"run index is {index}, expected 0 or more")
    text = "\n".join((nonce, submitter, system, benchmark, str(index)))
    # A log may hold any string, lone surrogates too: they must give a seed, not an exception.
    return int.from_bytes(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:4], "big")
