"""The fast way to read run logs: many lines at once, where nothing about them is odd.

``parse_block`` handles all records of a block with a few calls, none of which is made for each
record in Python. It returns None where a record is not as rule T1 wants it; ``reading.py`` then
reads fewer lines at a time, and in the end one line with care. It never guesses: what it accepts,
the careful way reads as the same events with the same problems. It accepts text before a marker,
for example the label of a rank as `srun --label` writes it, nested metadata, and both dialects.
"""

import re
from collections.abc import Sequence, Set
from itertools import accumulate
from operator import itemgetter
from typing import Any, NamedTuple

import orjson

from compliance.read import records
from compliance.read.jsontext import NESTING_MAX
from compliance.read.records import EVENT_TYPES, FIELDS, Event, Problem, names_its_source
from rules.events import CLOCK_METADATA, MARKER, is_number
from rules.rounds import Dialect

STEM = b":::MLL"  # what the markers of both dialects begin with
PLAIN = MARKER.encode() + b" "
V06_HEAD = rb"([0-9.]{1,40}) (\w{1,200}) ?:[ \t]+"  # <seconds> <key>:

_V06 = STEM + b" "
_match_v06_head = re.compile(V06_HEAD).match
_event_types = frozenset(EVENT_TYPES)
_clock_types = frozenset((float, int, type(None)))
_new_tuple = tuple.__new__

Columns = tuple[Sequence[float], Sequence[str], Sequence[str], Sequence[Any], Sequence[Any]]
"""Times in milliseconds, event types, keys, values and metadata of some records."""


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
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    return len(text) // 2 if b"\n" in text[:-1] else 0


def _parse_block(number: int, text: bytes, is_text: bool) -> Block:
    dialect: Dialect = "mllog" if PLAIN in text else "mll"
    marker = PLAIN if dialect == "mllog" else _V06
    contents: Sequence[bytes] = text.removeprefix(marker).split(b"\n" + marker)
    numbers: Sequence[int] = range(number, number + len(contents))
    problems, others_bytes = list[Problem](), 0
    if not text.startswith(marker) or len(contents) != text.count(b"\n", 0, -1) + 1:
        contents, numbers, labels, others_bytes = _split(number, text, marker, is_text)
        problems = _find_labels(numbers, labels)
    parse = _parse_mllog if dialect == "mllog" else _parse_v06
    try:
        (times_ms, event_types, keys, values, metadata), count = parse(contents)
    except orjson.JSONDecodeError:
        if dialect == "mllog":
            raise _OddError(numbers[_find_broken(contents)] - number) from None
        raise
    if dialect == "mllog" and not _all_name_their_source(metadata):
        message = "metadata does not name the file and lineno that wrote the record"
        lines = zip(numbers, metadata, strict=True)
        problems += [Problem(n, "schema", message) for n, m in lines if not names_its_source(m)]
        problems.sort(key=itemgetter(0))
    clocks = [fields.get(CLOCK_METADATA) for fields in metadata]
    if not _clock_types.issuperset(map(type, clocks)):
        clocks = [clock if is_number(clock) else None for clock in clocks]
    rows = zip(numbers, times_ms, clocks, event_types, keys, values, metadata, strict=True)
    events = [_new_tuple(Event, row) for row in rows]
    return Block(dialect, events, problems, len(text) - others_bytes, count)


def _demand(holds: bool) -> None:
    if not holds:
        raise _OddError


def _split(
    number: int, text: bytes, marker: bytes, is_text: bool
) -> tuple[Sequence[bytes], Sequence[int], Sequence[bytes], int]:
    """Return content, line number and label of each record, and the bytes of all other lines."""
    head, *pieces = text.split(marker)
    contents, line_feeds, rests = zip(*[piece.partition(b"\n") for piece in pieces], strict=True)
    _demand(all(line_feeds[:-1]))  # else two markers stand on one line
    others = (head, *rests)  # what stands before each record and after the last one
    outside = b"\n".join(others)
    _check_others(outside, is_text)
    if outside.count(b"\n") == len(pieces) and not others[-1]:  # nothing but labels
        return contents, range(number, number + len(pieces)), others[:-1], 0
    labels = [other[other.rfind(b"\n") + 1 :] for other in others[:-1]]
    steps = [rest.count(b"\n") + 1 for rest in rests[:-1]]
    numbers = list(accumulate(steps, initial=number + head.count(b"\n")))
    return contents, numbers, labels, sum(map(len, others)) - sum(map(len, labels))


def _check_others(others: bytes, is_text: bool) -> None:
    """Demand that the text beside the records holds no marker, and is text if it must be."""
    _demand(STEM not in others)
    if is_text:
        _demand(b"\0" not in others)
        if not others.isascii():
            others.decode()


def _find_labels(numbers: Sequence[int], labels: Sequence[bytes]) -> list[Problem]:
    """Return a problem for each record that does not begin its line."""
    described = {}
    for label in set(labels):
        got = label.decode()
        is_blank = not got.strip()
        message = f"{'blanks' if is_blank else 'text'} stand{'' if is_blank else 's'}"
        got = "" if is_blank else got[: records.GOT_CHARACTERS_MAX]
        described[label] = ("around", f"{message} before the marker", got, False)
    labelled = zip(numbers, labels, strict=True)
    return [_new_tuple(Problem, (number, *described[label])) for number, label in labelled if label]


def _parse_json(contents: Sequence[bytes]) -> list[Any]:
    return [orjson.loads(content) for content in contents]


def _find_broken(contents: Sequence[bytes]) -> int:
    """Return the number of the first content that is not JSON."""
    for number, content in enumerate(contents):
        try:
            orjson.loads(content)
        except orjson.JSONDecodeError:
            return number
    return 0


def _count_values(contents: Sequence[bytes], objects: Sequence[Any], flat_keys: int) -> int:
    r"""Return how many values the records hold at most. Demand that no key is in one object twice.

    orjson does not say so, it keeps the last of two equal keys. But each key has its colon:
    ``flat_keys``, those of the records, their metadata and their values, are all keys if there are
    no more colons. Otherwise the same number must be there when the objects are written again. What
    orjson dropped held at least one, and only an escape, ``\u003a``, makes more of them.
    """
    text = b"\n".join(contents)
    colons, has_lists = text.count(b":"), b"[" in text
    _demand(max(map(len, contents)) <= records.VALUES_PER_RECORD_MAX)
    if colons == flat_keys and not has_lists:
        return colons
    _demand(b"\\" not in text or b"\\u003" not in text)
    _demand(orjson.dumps(objects).count(b":") == colons)
    opened = text.count(b"{") + text.count(b"[")
    if opened > 2 * len(contents) + NESTING_MAX - 2:  # each record holds two objects or more
        deepest = max(content.count(b"{") + content.count(b"[") for content in contents)
        _demand(deepest <= NESTING_MAX)
    return colons + (text.count(b",") if has_lists else 0)


def _parse_mllog(contents: Sequence[bytes]) -> tuple[Columns, int]:
    objects = _parse_json(contents)
    _demand(set(map(len, objects)) == {len(FIELDS)})
    columns = ([fields[name] for fields in objects] for name in FIELDS)
    namespaces, times_ms, event_types, keys, values, metadata = columns
    _demand(set(map(type, times_ms)) == {int})
    _demand(min(times_ms) >= 0 and max(times_ms) < records.INTEGER_MAX)
    _demand(_event_types.issuperset(event_types))
    _check_names(set(keys))
    _check_names(set(namespaces) - {""})
    _demand(set(map(type, metadata)) == {dict})
    flat_keys = len(FIELDS) * len(objects) + sum(map(len, metadata)) + _count_keys(values)
    count = _count_values(contents, objects, flat_keys)
    return (times_ms, event_types, keys, values, metadata), count


def _parse_v06(contents: Sequence[bytes]) -> tuple[Columns, int]:
    heads = [head for head in map(_match_v06_head, contents) if head]
    spans = zip(contents, heads, strict=True)
    contents = [content[head.end() :] for content, head in spans]
    objects = _parse_json(contents)
    times_ms = [round(float(head[1]) * 1000, 3) for head in heads]
    _demand(max(times_ms) < records.INTEGER_MAX)
    keys = [head[2].decode() for head in heads]
    values, metadata = zip(*map(itemgetter("value", "metadata"), objects), strict=True)
    _demand(set(map(type, metadata)) == {dict})
    event_types = [fields.get("event_type", "") for fields in objects]
    _demand(set(map(type, event_types)) == {str})
    flat_keys = sum(map(len, objects)) + sum(map(len, metadata)) + _count_keys(values)
    count = _count_values(contents, objects, flat_keys)
    return (times_ms, event_types, keys, values, metadata), count


def _count_keys(values: Sequence[Any]) -> int:
    return sum([len(value) for value in values if type(value) is dict])


def _check_names(names: Set[str]) -> None:
    _demand(set(map(type, names)) <= {str})
    _demand("" not in names and max(map(len, names), default=1) <= records.NAME_CHARACTERS_MAX)


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
