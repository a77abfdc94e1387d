"""Logs that are not plain text are read all the same: UTF-16, UTF-32, gzip.

Nothing is unpacked that is not read, and nothing of it is kept: a reader takes pieces, and stops at
the bound of a file, however much a small file may unpack to.
"""

import codecs
import io
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from cepheid.compliance.read.log import damage
from cepheid.compliance.read.log.records import Problem

BEGINNING = 64  # bytes of a file by which ``damage.recognise`` tells what it is
LAYERS_MAX = 2  # UTF-16 within gzip
MEMBERS_MAX = 1_000  # of one gzip file: each restarts the unpacking
PIECE_BYTES = 64 * 2**10
_MARKS = {  # the longer ones first
    b"\xff\xfe\0\0": "utf-32", b"\0\0\xfe\xff": "utf-32", b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}  # fmt: skip


class DamagedError(ValueError):
    """A packed file that cannot be unpacked to its end; its text says why."""


class _Pieces(io.RawIOBase):
    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any, /) -> int:
        """Fill the buffer and return the number of bytes; 0 behind the last piece."""
        while not self._rest and (piece := next(self._pieces, None)) is not None:
            self._rest = memoryview(piece)
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def open_plain(file: io.BufferedReader) -> tuple[io.BufferedReader, Sequence[Problem]]:
    """Return the file that holds the UTF-8 text of a file, and how that is packed.

    A file of a form that is not unpacked is returned as it is.
    """
    problems = []
    for _ in range(LAYERS_MAX):
        beginning = file.peek(BEGINNING)[:BEGINNING]
        cause = damage.recognise(beginning)
        pieces = _unpack(file, cause.case, beginning) if cause else None
        if cause is None or pieces is None:
            break
        message = f"{cause.message}, and was read all the same"
        problems.append(Problem(1, "text", message, case=cause.case, foreign=True))
        file = io.BufferedReader(_Pieces(pieces))
    return file, problems


def _unpack(file: io.BufferedReader, case: str, beginning: bytes) -> Iterator[bytes] | None:
    if beginning.startswith(b"\x1f\x8b"):
        return _unzip(file)
    if case in ("utf_16", "utf_32"):
        order = "be" if beginning.startswith(b"\0") else "le"
        marked = next((name for mark, name in _MARKS.items() if beginning.startswith(mark)), "")
        return _recode(file, marked or f"{case.replace('_', '-')}-{order}")
    return None


def _recode(file: io.BufferedReader, encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        while data := file.read(PIECE_BYTES):
            yield decoder.decode(data).encode()
        yield decoder.decode(b"", final=True).encode()
    except UnicodeError as error:
        raise DamagedError(f"it is no {encoding.upper()} from some place on: {error}") from None


def _unzip(file: io.BufferedReader) -> Iterator[bytes]:
    machine, members = zlib.decompressobj(wbits=31), 1
    try:
        while packed := file.read(PIECE_BYTES):
            is_full = False
            while packed or is_full:
                if machine.eof:
                    machine, members = zlib.decompressobj(wbits=31), members + 1
                    if members > MEMBERS_MAX:
                        raise DamagedError(f"it has more than {MEMBERS_MAX:,} parts")
                piece = machine.decompress(packed, PIECE_BYTES)
                packed = machine.unused_data.lstrip(b"\0") or machine.unconsumed_tail
                is_full = len(piece) == PIECE_BYTES and not machine.eof
                yield piece
    except zlib.error as error:
        raise DamagedError(f"it cannot be unpacked: {error}") from None
    if not machine.eof:
        raise DamagedError("it ends in the middle of what was packed")
