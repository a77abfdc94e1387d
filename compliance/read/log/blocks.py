"""The fast way to read run logs: many lines at once, where nothing about them is odd.

``parse_block`` handles all records of a block with a few calls, none of which is made for each
record in Python. msgspec decodes the lines into events, and refuses those with a wrong field.
Where a record is not as rule T1 wants it, ``reading.py`` reads fewer lines at a time, and in the
end one line with care. ``parse_block`` never guesses: what it accepts, the careful way reads as the
same events with the same problems. It accepts text before a marker, for example the label of a rank
as `srun --label` writes it, nested metadata, and both dialects.
"""

import re
from collections.abc import Sequence
from itertools import compress, repeat
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from compliance.read.log import records
from compliance.read.log.records import (
    FIELDS,
    SOUND_VALUE,
    Event,
    Problem,
    SoundEvent,
    names_its_source,
)
from rules.events import MARKER
from rules.rounds import Dialect

STEM = b":::MLL"  # what the markers of both dialects begin with
PLAIN = MARKER.encode() + b" "
V06_HEAD = rb"([0-9.]{1,40}) (\w{1,200}) ?:[ \t]+"  # <seconds> <key>:

_V06 = STEM + b" "
_match_v06_head = re.compile(V06_HEAD).match
_new_tuple = tuple.__new__
_decode_record = msgspec.json.Decoder(SoundEvent).decode
_decode_content = msgspec.json.Decoder(dict[str, SOUND_VALUE]).decode
_encode = msgspec.json.Encoder().encode


class Block(NamedTuple):
    """The records of some lines, and how much of what is bounded they use up."""

    dialect: Dialect
    events: list[Event]
    problems: list[Problem]  # all of them for text before a marker
    record_bytes: int
    values: int


class _OddError(Exception):
    """Something in a block needs the careful way; ``line`` counts from 0, None where unknown."""

    def __init__(self, line: int | None = None) -> None:
        super().__init__(line)
        self.line = line


def parse_block(number: int, text: bytes, *, is_text: bool) -> Block | int:
    """Parse whole lines, the first of them line ``number``.

    Where one of them needs care, return how many bytes to try instead, or 0: take care of the
    first line. ``text`` holds at least one ``STEM``, and at most its last line lacks a line feed.
    ``is_text`` says that lines without a record must be UTF-8; it is False once they are known not
    to be.
    """
    try:
        return _parse_block(number, text, is_text)
    except _OddError as odd:
        if odd.line is not None:
            return len(text) - len(text.split(b"\n", odd.line)[-1])
    # A field is missing or of another type, or the text is not UTF-8.
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    return len(text) // 2 if b"\n" in text[:-1] else 0


def _parse_block(number: int, text: bytes, is_text: bool) -> Block:
    dialect: Dialect = "mllog" if PLAIN in text else "mll"
    marker = PLAIN if dialect == "mllog" else _V06
    line_count = text.count(b"\n", 0, -1) + 1
    contents: Sequence[bytes] = ()
    if text.startswith(marker):
        contents = text[len(marker) :].split(b"\n" + marker)
    numbers: Sequence[int] = range(number, number + line_count)
    problems, record_bytes = list[Problem](), len(text)
    if len(contents) != line_count:
        contents, numbers, labels, record_bytes = _split(number, text, marker, is_text)
        problems = _find_labels(numbers, labels)
    if len(text) > records.VALUES_PER_RECORD_MAX:
        _demand(max(map(len, contents)) <= records.VALUES_PER_RECORD_MAX)
    if dialect == "mll":
        contents, heads = _split_heads(contents)
        events, other_keys = _parse_v06(contents, heads)
    else:
        try:
            events = [_decode_record(content) for content in contents]
        except msgspec.DecodeError:
            raise _OddError(numbers[_find_broken(contents)] - number) from None
        other_keys = len(FIELDS) * len(events)
    metadata = [event.metadata for event in events]
    colons = b"\n".join(contents).count(b":")
    values = [event.value for event in events]
    inner_keys = sum(map(len, metadata)) + sum([len(v) for v in values if type(v) is dict])
    if colons != other_keys + inner_keys:
        _demand_different_keys(text, colons - other_keys, (metadata, values))
    if dialect == "mllog" and not _all_name_their_source(metadata):
        message = "metadata does not name the file and lineno that wrote the record"
        lines = zip(numbers, metadata, strict=True)
        problems += [Problem(n, "schema", message) for n, m in lines if not names_its_source(m)]
        problems.sort(key=itemgetter(0))
    for event, line in zip(events, numbers, strict=True):
        event.line = line
    count = colons + (text.count(b",") if b"[" in text else 0)
    return Block(dialect, events, problems, record_bytes, count)


def _demand(holds: bool) -> None:
    if not holds:
        raise _OddError


def _split(
    number: int, text: bytes, marker: bytes, is_text: bool
) -> tuple[Sequence[bytes], Sequence[int], Sequence[bytes], int]:
    """Return content, line number and label of each record, and the bytes of these lines."""
    lines = [line.partition(marker) for line in text.removesuffix(b"\n").split(b"\n")]
    numbers: Sequence[int] = range(number, number + len(lines))
    labels, markers, contents = zip(*lines, strict=True)
    others = [label for label, found in zip(labels, markers, strict=True) if not found]
    record_bytes = len(text)
    if others:
        record_bytes -= sum(map(len, others)) + len(others)
        record_bytes += not (markers[-1] or text.endswith(b"\n"))  # no line feed follows
        numbers = list(compress(numbers, markers))
        labels, contents = tuple(compress(labels, markers)), tuple(compress(contents, markers))
    _check_others(b"\n".join({*labels, *others}), is_text)
    return contents, numbers, labels, record_bytes


def _check_others(others: bytes, is_text: bool) -> None:
    """Demand that the text beside the records holds no marker, and is text if it must be."""
    _demand(STEM not in others)
    if is_text:
        _demand(b"\0" not in others)
        if not others.isascii():
            others.decode()


def _find_labels(numbers: Sequence[int], labels: Sequence[bytes]) -> list[Problem]:
    """Return a problem for each record that does not begin its line."""
    texts = {label: label.decode() for label in set(labels)}
    if b"" in texts:
        numbers, labels = list(compress(numbers, labels)), list(filter(None, labels))
    messages = {
        label: f"{'text stands' if text.strip() else 'blanks stand'} before the marker"
        for label, text in texts.items()
    }
    got = {
        label: text[: records.GOT_CHARACTERS_MAX] if text.strip() else ""
        for label, text in texts.items()
    }
    rows = zip(
        numbers,
        repeat("around"),
        [messages[label] for label in labels],
        [got[label] for label in labels],
        repeat(False),
        strict=False,
    )
    return list(map(_new_tuple, repeat(Problem), rows))


def _find_broken(contents: Sequence[bytes]) -> int:
    """Return the number of the first content that is not a sound record."""
    for number, content in enumerate(contents):
        try:
            _decode_record(content)
        except msgspec.DecodeError:
            return number
    return 0


def _demand_different_keys(text: bytes, colons: int, objects: object) -> None:
    r"""Demand that no object of a block of text holds a key twice.

    msgspec does not say so, it keeps the last of two equal keys. But each key has its colon. If all
    keys were counted and there are no more colons, this function is not needed. Otherwise the same
    number of ``colons`` must be there when the objects are written again. What msgspec dropped held
    at least one, and only an escape, ``\u003a``, makes more of them.
    """
    _demand(b"\\" not in text or b"\\u003" not in text)  # most blocks have no "\\" at all
    _demand(_encode(objects).count(b":") == colons)


def _split_heads(lines: Sequence[bytes]) -> tuple[list[bytes], list[re.Match[bytes]]]:
    """Return the JSON of records of v0.6, and what stands before it."""
    heads = [head for head in map(_match_v06_head, lines) if head]
    contents = [line[head.end() :] for line, head in zip(lines, heads, strict=True)]
    _demand(all(content.startswith(b"{") for content in contents))
    return contents, heads


def _parse_v06(
    contents: Sequence[bytes], heads: Sequence[re.Match[bytes]]
) -> tuple[list[Event], int]:
    """Return the records, and how many keys all of them hold, without those of inner objects."""
    objects: list[dict[str, Any]] = [_decode_content(content) for content in contents]
    events = [
        Event(
            namespace=fields.get("namespace", ""),
            time_ms=round(float(head[1]) * 1000, 3),
            event_type=fields.get("event_type", ""),
            key=head[2].decode(),
            value=fields["value"],
            metadata=fields["metadata"],
        )
        for head, fields in zip(heads, objects, strict=True)
    ]
    _demand(max([event.time_ms for event in events]) < records.INTEGER_MAX)
    _demand(all(type(event.metadata) is dict for event in events))
    _demand(all(type(event.event_type) is str for event in events))
    return events, sum(map(len, objects))


def _all_name_their_source(metadata: Sequence[dict[str, Any]]) -> bool:
    """Return whether ``names_its_source`` holds for all, without a call for each."""
    try:
        files = [fields["file"] for fields in metadata]
        lines = [fields["lineno"] for fields in metadata]
    except KeyError:
        return False
    different = set(files)
    return (
        set(map(type, different)) == {str}
        and max(map(len, different)) <= records.SOURCE_CHARACTERS_MAX
        and set(map(type, lines)) == {int}
        and min(lines) >= 0
    )
