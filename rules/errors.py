"""The exception for a mistake of the user; tools print it without a traceback."""

import errno
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import NoReturn


class UserError(Exception):
    """Wrong use, not a bug: the message says what is wrong, where, and how to fix it."""


def run_script(main: Callable[[], int]) -> NoReturn:
    """Run a script's main and exit: one line for a mistake of the user."""
    try:
        sys.exit(main())
    except UserError as error:
        print(f"cepheid: {error}", file=sys.stderr)
        sys.exit(2)


@cache
def _read_words() -> tuple[Mapping[str, list[str]], Mapping[str, str]]:
    """Read what words of other programs mean here, and where what has no name here is set."""
    import yaml  # here: only a mistake needs it

    words = yaml.safe_load(Path(__file__).with_name("words.yaml").read_text(encoding="utf-8"))
    ours: dict[str, list[str]] = {}
    for name, theirs in words["ours"].items():
        for word in theirs.split():
            ours.setdefault(word, []).append(name)
    places = words["elsewhere"].items()
    return ours, {word: place for place, theirs in places for word in theirs.split()}


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a suggestion to append to a message, or nothing if no known word is close.

    For example: ``; did you mean "galaxy_shape"?``
    """
    meant = find_meant(word, known)
    return f'; did you mean "{meant}"?' if meant else ""


def find_elsewhere(word: str) -> str:
    """Return where something is set that other programs have an option for; "" if not known."""
    return _read_words()[1].get("_".join(_WORD.findall(word.lower())), "")


def find_meant(word: str, *kinds: Iterable[str]) -> str:
    """Return the known word that is meant, or "" if none is close.

    It ends with the words that were given, or has them, or is spelled nearly so; ``lr`` are those
    of ``learning_rate``. Of several ``kinds`` the first one that fits equally well has it.
    """
    text = word.lower().strip("-")
    parts, ours = _WORD.findall(text), _read_words()[0]
    whole = [_split(name) for name in ours.get("_".join(parts), [])]
    translated = (_split(ours.get(part, [part])[0]) for part in parts)
    asked = [*whole, _split(text), [each for part in translated for each in part]]
    groups = [{name: _split(name) for name in kind} for kind in kinds]
    for fits in (_is_end, _has_words):
        for group in groups:
            for words in filter(None, asked):
                found = [name for name, own in group.items() if fits(words, own)]
                if found:
                    return found[0] if fits is _is_end else min(found, key=lambda n: len(group[n]))
    import difflib  # here: few commands need it

    for group in groups:
        names = {name.lower().strip("-"): name for name in group}
        if close := difflib.get_close_matches(text, names, n=1):
            return names[close[0]]
    return ""


_WORD = re.compile(r"[a-z0-9]+")


def _split(name: str) -> list[str]:
    return re.findall(r"[a-z]+|[0-9]+", name.lower())


def _is_end(words: list[str], of: list[str]) -> bool:
    """Return whether a name ends with these words, however they are joined."""
    return "".join(words) in {"".join(of[first:]) for first in range(len(of))}


def _has_words(words: list[str], of: list[str]) -> bool:
    """Return whether each word begins a word of a name; a single letter says too little."""
    return len("".join(words)) > 2 and all(any(o.startswith(w) for o in of) for w in words)


def cannot_write(path: Path, error: OSError) -> UserError:
    """Return the error for a place that is full or belongs to somebody else."""
    why = error.strerror or type(error).__name__
    return UserError(f"{path}: cannot write there ({why}); make room or choose another place")


SYSTEM_FIXES = {
    errno.ENOMEM: "end other programs, or raise the limit of memory (ulimit -v)",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "end other programs: the whole machine has too many open files",
    errno.EACCES: "ask its owner for the permission",
    errno.EPERM: "ask its owner for the permission",
    errno.EIO: "the disk or the file system has failed; the system log says more",
    errno.ESTALE: "mount the file system again",
    errno.ENOSPC: "make room on the disk",
    errno.EDQUOT: "make room: the quota is used up",
    errno.EROFS: "choose a place that can be written",
}
"""The errors of the system that say nothing about a file's content, and what fixes them."""

NO_ROOM_FOR_A_LIBRARY = ("Cannot allocate memory", "failed to map segment")


def explain_system_error(error: BaseException) -> str:
    """Return in one line what the system refused, or nothing for any other error."""
    if isinstance(error, MemoryError):
        return describe_system_error(error)
    if isinstance(error, RuntimeError) and "can't allocate memory" in str(error):  # torch's
        return describe_system_error(MemoryError(str(error).strip().partition("\n")[0][:200]))
    if isinstance(error, OSError) and error.errno in SYSTEM_FIXES:
        return f"{error.filename or 'the system'}: {describe_system_error(error)}"
    if isinstance(error, ImportError) and any(sign in str(error) for sign in NO_ROOM_FOR_A_LIBRARY):
        return describe_system_error(MemoryError())
    return ""


def raise_if_refused(path: Path, error: BaseException) -> None:
    """Raise UserError if the system refused to read ``path``; return for any other error.

    It comes first where everything else means that the file is damaged.
    """
    if reason := explain_system_error(error):
        raise UserError(f"{path}: cannot be read ({reason})") from error


def cannot_read(path: Path, error: OSError | MemoryError) -> UserError:
    """Return the error for a file that the system refuses to read, whatever the file holds."""
    return UserError(f"{path}: cannot be read ({describe_system_error(error)})")


def describe_system_error(error: OSError | MemoryError) -> str:
    """Return what the system said, and what fixes it, as one phrase."""
    number = errno.ENOMEM if isinstance(error, MemoryError) else error.errno
    if number is None:
        return str(error) or type(error).__name__
    fix = f"; fix: {SYSTEM_FIXES[number]}" if number in SYSTEM_FIXES else ""
    if isinstance(error, MemoryError) and str(error):
        return f"MemoryError: {error}{fix}"
    return f"{os.strerror(number)}, {errno.errorcode.get(number, number)}{fix}"
