"""What has happened to a damaged log: the cause behind what its bytes show.

One damage has one cause, however many records show it. Each cause is a case of a code of T1 in
``rules/findings/log.yaml``, which says what helps.
"""

import json
import re
from typing import NamedTuple

from cepheid.compliance.read.log.records import GOT_CHARACTERS_MAX, Problem


class Cause(NamedTuple):
    """Why something cannot be read: the case of a code, and what a reader is told."""

    case: str
    message: str


COLOURS = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
"""The control sequences with which programs colour what they show on a terminal."""

_UTF_16 = Cause("utf_16", "the file is UTF-16 text")
_UTF_32 = Cause("utf_32", "the file is UTF-32 text")
_BEGINNINGS = {  # of a whole file; the longer ones first
    rb"\xff\xfe\0\0|\0\0\xfe\xff|([\t-~]\0\0\0){4}|(\0\0\0[\t-~]){4}": _UTF_32,
    rb"\xff\xfe|\xfe\xff|([\t-~]\0){8}|(\0[\t-~]){8}": _UTF_16,
    rb"\x1f\x8b": Cause("compressed", "the file is compressed (gzip)"),
    rb"BZh[1-9]1AY": Cause("compressed", "the file is compressed (bzip2)"),
    rb"\xfd7zXZ\0": Cause("compressed", "the file is compressed (xz)"),
    rb"\x28\xb5\x2f\xfd": Cause("compressed", "the file is compressed (zstd)"),
    rb"PK\x03\x04": Cause("compressed", "the file is compressed (zip)"),
}
_beginnings = [(re.compile(pattern), cause) for pattern, cause in _BEGINNINGS.items()]
_wide_text = re.compile(rb"([\t-~]\0){8}|(\0[\t-~]){8}")

_LABELS = {  # what stands before the marker
    r"\ufeff": Cause("mark", "a byte order mark stands before the marker"),
    COLOURS.pattern: Cause("colours", "colour codes of a terminal stand before the marker"),
    r" *[0-9]+: *$": Cause("rank", "a rank stands before the marker (srun --label)"),
    r"\[[0-9,. ]+\] ?(<std(out|err)>)?:? *$": Cause(
        "rank", "a rank stands before the marker (mpirun --tag-output)"
    ),
    r"\[?[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.,]+(Z|[+-][0-9:]+)?\]?[ :]*$": Cause(
        "time", "a time stands before the marker (kubectl logs --timestamps)"
    ),
}
_labels = [(re.compile(pattern), cause) for pattern, cause in _LABELS.items()]

_CUT = re.compile(r",?\s*(|t|tr|tru|f|fa|fal|fals|n|nu|nul|-|\.|[eE][+-]?)$")
"""The rest of a line that ends within a record, from where it is no JSON."""

WRAPPED = Cause("wrapped", "the record goes on on the next line")
DOCKER = Cause("docker", "the record is a text in other JSON, as Docker keeps what is printed")
_PYTHON = re.compile(r"'|None\b|True\b|False\b")


def recognise(beginning: bytes) -> Cause | None:
    """Return what a whole file is by its first bytes if it is no plain text, else None."""
    if beginning.startswith(b":") and b"\0" not in beginning[:16]:
        return None  # as most logs begin
    return next((cause for known, cause in _beginnings if known.match(beginning)), None)


def explain_nul(text: bytes) -> Cause:
    """Return why lines hold NUL bytes."""
    if _wide_text.search(text):
        return _UTF_16._replace(message="a part of the file is UTF-16 text")
    return Cause("", "the file holds NUL bytes")


def describe_label(line: int, label: str) -> Problem:
    """Return the problem of a line on which text, or only blanks, stand before the marker."""
    if not label.strip():
        return Problem(line, "around", "blanks stand before the marker")
    known = (cause for pattern, cause in _labels if pattern.match(label))
    case, message = next(known, Cause("", "text stands before the marker"))
    return Problem(line, "around", message, label[:GOT_CHARACTERS_MAX], case=case)


def unwrap_docker(text: str) -> str | None:
    """Return the line that Docker keeps in JSON of its own, None for any other line."""
    try:
        line = json.loads(text)["log"] if text.startswith('{"log":') else None
    except (ValueError, RecursionError):
        return None
    return line.rstrip() if isinstance(line, str) else None


def explain_json(text: str, error: Exception) -> tuple[Cause, int | None]:
    """Return why the record on a line is not JSON, and the column from which it is not."""
    if not isinstance(error, json.JSONDecodeError):
        return Cause("", "what follows the marker is not JSON"), None
    what, at = error.msg.rstrip(": ").removesuffix(" at"), error.pos
    if "escape" in what:
        cause = Cause("escape", "a backslash in it escapes nothing")
    elif what.startswith("Unterminated string") or _CUT.match(text, at):
        cause = WRAPPED
    elif _PYTHON.match(text, at):
        cause = Cause("python", "it is written as Python writes its values")
    else:
        cause = Cause("", f"{what[:1].lower()}{what[1:]}")
    return cause._replace(message=f"what follows the marker is not JSON: {cause.message}"), at + 1


def find_not_utf8(text: bytes) -> int:
    """Return where ``text`` stops being UTF-8, or -1."""
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start
    return -1


WRAPPED_LINES_MAX = 64
WRAPPED_BYTES_MAX = 32 * 2**10  # of a record with all its lines


def join_wrapped(text: bytes, start: int, stem: bytes) -> tuple[bytes, int] | None:
    """Join a record that a terminal wrapped to one line; return it, and where its last line ends.

    The record begins in the line at ``start``. None where that line needs no other one, or where
    those that follow, up to the next ``stem``, do not make it JSON.
    """
    end = text.find(b"\n", start) + 1
    marker = text.rfind(stem, start, end)
    brace = text.find(b"{", marker, end)
    if not end or marker < 0 or brace < 0 or not _goes_on(text[brace:end]):
        return None
    until = text.find(stem, end, start + WRAPPED_BYTES_MAX)
    until = start + WRAPPED_BYTES_MAX if until < 0 else until
    joined = text[start:end].rstrip(b"\r\n")
    for _ in range(WRAPPED_LINES_MAX):
        line_end = text.find(b"\n", end, until) + 1 or len(text)
        if line_end > until or end == len(text):
            return None
        joined, end = joined + text[end:line_end].rstrip(b"\r\n"), line_end
        if joined.rstrip().endswith(b"}") and _is_json(joined[brace - start :]):
            return joined + b"\n", end
    return None


def _goes_on(line: bytes) -> bool:
    """Return whether a line is no JSON because it ends too early."""
    text = line.decode(errors="replace").rstrip()
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        return explain_json(text, error)[0].case == WRAPPED.case
    return False


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def skip_blanks(text: str, start: int) -> int:
    """Return where blanks end."""
    while start < len(text) and text[start].isspace():
        start += 1
    return start
