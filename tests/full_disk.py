"""A disk that is full, for tests: honest refusals of the system, without filling anything up."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))\n"
"""Python code that lets its process write no file beyond ``size`` bytes."""


@contextmanager
def files_end_after(size_bytes: int) -> Iterator[None]:
    """No file can be written beyond ``size_bytes`` in this process: EFBIG instead of ENOSPC."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
