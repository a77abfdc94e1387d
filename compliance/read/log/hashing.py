"""Files that are hashed while they are parsed, so that no log is read twice."""

import hashlib
import io
from typing import Any

CHUNK_BYTES = 2**20


class HashingFile(io.FileIO):
    """An unbuffered file that hashes every byte that a reader takes from it."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "rb", closefd=False)
        self._hash = hashlib.sha256()

    def readinto(self, buffer: Any, /) -> int:
        """Fill the buffer and return the number of bytes that were read."""
        count = super().readinto(buffer) or 0
        self._hash.update(memoryview(buffer)[:count])
        return count

    def readall(self) -> bytes:
        """Return everything that has not been read yet."""
        data = super().readall() or b""
        self._hash.update(data)
        return data

    def finish(self) -> str:
        """Read to the end of the file and return the SHA-256 of all of it in hexadecimal."""
        buffer = bytearray(CHUNK_BYTES)
        while self.readinto(buffer):
            pass
        return self._hash.hexdigest()
