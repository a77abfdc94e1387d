"""Guess which key a misspelt one stands for."""

from collections.abc import Mapping
from itertools import islice

from cepheid.compliance.read.log.runlog import RunLog

SUGGESTED_MAX = 100  # unknown keys of a log; the search for similar keys is slow


def suggest_keys(run: RunLog, known: set[str]) -> Mapping[str, str]:
    """Return the missing key that each unknown key of the log looks like."""
    import difflib

    missing = [key for key in known if not run.all(key)]
    suggestions: dict[str, str] = {}
    unknown = (key for key in run.by_key if key not in known)
    for key in islice(unknown, SUGGESTED_MAX):
        close = [other for other in missing if _looks_like(key, other)]
        close += difflib.get_close_matches(key[:100], missing, n=1)
        if close:
            suggestions[key] = close[0]
    return suggestions


def _looks_like(key: str, other: str) -> bool:
    """Return True if the ASCII letters agree and the others come from another script."""
    if key.isascii() or len(key) != len(other):
        return False
    return all(a == b for a, b in zip(key, other, strict=True) if a.isascii())
