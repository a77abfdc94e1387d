"""The exception of this library, and suggestions for names that do not exist."""

import difflib
from collections.abc import Iterable


class UseError(ValueError):
    """The library was used wrongly: the message says what is wrong, where, and how to fix it.

    A program may print the message alone: ``is_wrong_use`` tells this error from a bug.
    """

    is_wrong_use = True


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a suggestion to append to a message, or nothing if no known word is close."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f'; did you mean "{close[0]}"?' if close else ""
