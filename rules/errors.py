"""The exception for a mistake of the user; tools print it without a traceback."""

import difflib
from collections.abc import Iterable
from pathlib import Path


class UserError(Exception):
    """Wrong use, not a bug: the message says what is wrong, where, and how to fix it."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a suggestion to append to a message, or nothing if no known word is close.

    For example: ``; did you mean "galaxy_shape"?``.
    """
    close = difflib.get_close_matches(word, list(known), n=1)
    return f'; did you mean "{close[0]}"?' if close else ""


def cannot_write(path: Path, error: OSError) -> UserError:
    """Return the error for a place that is full or belongs to somebody else."""
    why = error.strerror or type(error).__name__
    return UserError(f"{path}: cannot write there ({why}); make room or choose another place")
