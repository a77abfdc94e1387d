"""A disk that is full, for tests: honest refusals of the system, without filling anything up."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


def limit_files(size_bytes: int) -> None:
    """Let this process write no file beyond ``size_bytes`` for the rest of its life."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))


@contextmanager
def files_end_after(size_bytes: int) -> Iterator[None]:
    """No file can be written beyond ``size_bytes`` in this process: EFBIG instead of ENOSPC."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
