"""Errors of the system are named as what they are, in one line with a fix."""

import errno
from pathlib import Path

import pytest

from cepheid.rules.errors import cannot_read, describe_system_error, explain_system_error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.EIO, "x", "a.npy"), "a.npy: Input/output error, EIO; fix: the disk"),
        (OSError(errno.EMFILE, "x"), "the system: Too many open files, EMFILE; fix: raise"),
        (PermissionError(errno.EACCES, "x", "b"), "b: Permission denied, EACCES; fix: ask"),
        (MemoryError(), "Cannot allocate memory, ENOMEM; fix: end other programs"),
        (MemoryError("9 GiB"), "MemoryError: 9 GiB; fix: end other programs"),
        (ImportError("libx.so: failed to map segment from shared object"), "Cannot allocate"),
        (FileNotFoundError(errno.ENOENT, "x", "c"), ""),
        (RuntimeError("cpu: can't allocate memory: 9\nat x"), "MemoryError: cpu: can't allocate"),
        (RuntimeError("a bug"), ""),
        (ImportError("no module x"), ""),
        (ValueError("x"), ""),
    ],
    ids=repr,
)
def test_what_the_system_refused_is_told_in_one_line(error: BaseException, says: str) -> None:
    told = explain_system_error(error)
    assert told.startswith(says)
    assert bool(told) == bool(says)
    assert "\n" not in told


def test_a_file_that_cannot_be_read_is_named() -> None:
    told = str(cannot_read(Path("x/labels.npy"), OSError(errno.ENOMEM, "")))
    assert told.startswith("x/labels.npy: cannot be read (Cannot allocate memory, ENOMEM; fix: ")
    assert describe_system_error(OSError("odd")) == "odd"
