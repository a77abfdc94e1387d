"""The one exception that means "the user can mend this": tools print it without a traceback."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Wrong use, not a bug: its message says what is wrong, where, and what to do."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A suggestion to append to a message, e.g. ``; did you mean "galaxy_shape"?``, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f'; did you mean "{close[0]}"?' if close else ""
