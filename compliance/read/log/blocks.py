"""The fast way to read run logs: many lines at once, where nothing about them is odd.

``parse_block`` handles all records of a block with a few calls, none of which is made for each
record in Python. msgspec decodes the lines into events, and refuses those with a wrong field.
Where a record is not as rule T1 wants it, ``reading.py`` reads fewer lines at a time, and in the
end one line with care. ``parse_block`` never guesses: what it accepts, the careful way reads as the
same events with the same problems. It accepts text before a marker, for example the label of a rank
as `srun --label` writes it, nested metadata, and both dialects.
"""

import re
from collections.abc import Callable, Sequence
from itertools import accumulate, compress, repeat
from operator import add, attrgetter, itemgetter
from typing import Any, NamedTuple

import msgspec

from cepheid.compliance.read.log import records
from cepheid.compliance.read.log.records import (
    FIELDS,
    UNTYPED,
    Event,
    OldEvent,
    Problem,
    SoundEvent,
    count_lines,
    names_its_source,
)
from cepheid.rules.events import MARKER
from cepheid.rules.rounds import Dialect

STEM = b":::MLL"  # what the markers of both dialects begin with
PLAIN = MARKER.encode() + b" "
V06_HEAD = rb"([0-9.]{1,40}) (\w{1,200}) ?:[ \t]+"  # <seconds> <key>:

GLANCED_BYTES = 4 * 2**10  # of a block, to see how it is split sooner
LINE_FEED = ord("\n")  # an integer is looked for in bytes five times as fast as bytes are

_V06 = STEM + b" "
_find_v06_parts = re.compile(rb"^" + V06_HEAD + rb"(\{.*)$", re.MULTILINE).findall
_decode_record = msgspec.json.Decoder(SoundEvent).decode
_decode_old_record = msgspec.json.Decoder(OldEvent).decode
_encode = msgspec.json.Encoder().encode
_get_line, _get_file, _get_lineno = attrgetter("line"), itemgetter("file"), itemgetter("lineno")


class Block(NamedTuple):
    """The records of some lines, and how much of what is bounded they use up.

    ``problems`` are those beside text before a marker. ``labels`` holds that text for each record
    of ``labelled``, a line number each.
    """

    dialect: Dialect
    events: list[Event]
    problems: list[Problem]
    labelled: Sequence[int]
    labels: Sequence[bytes]
    line_feeds: int
    record_bytes: int
    values: int


class _Split(NamedTuple):
    """What the records of a block hold after the marker, and what stands before it."""

    contents: Sequence[bytes]
    joined: bytes  # the same, one behind the other
    numbers: Sequence[int]  # of their lines
    labels: Sequence[bytes]  # empty where every record begins its line
    line_feeds: int
    record_bytes: int  # of the lines with a record


class _OddError(Exception):
    """Something in a block needs the careful way; ``line`` counts from 0, None where unknown."""

    def __init__(self, line: int | None = None) -> None:
        super().__init__(line)
        self.line = line


def parse_block(
    number: int, text: bytes, *, is_text: bool, is_lenient: bool = False
) -> Block | int:
    """Parse whole lines, the first of them line ``number``.

    Where one of them needs care, return how many bytes to try instead, or 0: take care of the
    first line. ``text`` holds at least one ``STEM``, and at most its last line lacks a line feed.
    ``is_text`` says that lines without a record must be UTF-8; it is False once they are known not
    to be. ``is_lenient`` leaves out problems that lose no record: labels, event types, sources.
    """
    try:
        dialect: Dialect = "mllog" if text.startswith(PLAIN, text.rfind(STEM)) else "mll"
        marker = PLAIN if dialect == "mllog" else _V06
        how = {"is_text": is_text, "is_lenient": is_lenient}
        middle = len(text) // 2  # where most lines are records, mostly, or most are none
        is_sparse = text.count(STEM, middle, middle + GLANCED_BYTES) < 2
        split = None if is_sparse else _split_begun(number, text, marker, **how)
        split = split or _split(number, text, marker, is_sparse=is_sparse, **how)
        return _make_block(dialect, number, split, is_lenient)
    except _OddError as odd:
        if odd.line is not None:
            return len(text) - len(text.split(b"\n", odd.line)[-1])
    # A field is missing or of another type, or the text is not UTF-8.
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    return len(text) // 2 if b"\n" in text[:-1] else 0


def _make_block(dialect: Dialect, number: int, split: _Split, is_lenient: bool) -> Block:
    contents, joined, numbers, *_ = split
    decode: Callable[[bytes], Event] = _decode_record
    problems, fields = list[Problem](), len(FIELDS)
    if len(joined) > records.VALUES_PER_RECORD_MAX:
        _demand(max(map(len, contents)) <= records.VALUES_PER_RECORD_MAX)
    if dialect == "mll":
        times, keys_of, contents = zip(*_find_v06_parts(b"\n".join(contents)), strict=True)
        _demand(len(contents) == len(numbers))
        joined, decode, fields = b"".join(contents), _decode_old_record, 2
    try:
        events = list[Event](map(decode, contents))
    except msgspec.DecodeError:
        raise _OddError(numbers[_find_broken(contents, decode)] - number) from None
    if dialect == "mll":
        texts = b" ".join(keys_of).decode().split()
        for event, seconds, key in zip(events, times, texts, strict=True):
            event.time_ms, event.key = float(seconds + b"e3"), key
        _demand(max([event.time_ms for event in events]) < records.INTEGER_MAX)
    metadata, other_keys = [event.metadata for event in events], fields * len(events)
    colons = joined.count(b":")
    keys = other_keys + sum(map(len, metadata))
    if colons != keys:
        keys += sum([len(v) for event in events if type(v := event.value) is dict])
    if dialect == "mllog" and not (colons == keys and is_lenient):
        types = [event.event_type for event in events]
        untyped = [at for at, kind in enumerate(types) if not kind] if "" in types else ()
        problems += [Problem(numbers[at], "schema", UNTYPED) for at in untyped]
        keys, other_keys = keys - len(untyped), other_keys - len(untyped)
    if colons != keys:
        _demand_different_keys(joined, colons - other_keys, metadata, events)
    if dialect == "mllog" and not is_lenient and not _all_name_their_source(metadata):
        message = "metadata does not name the file and lineno that wrote the record"
        lines = zip(numbers, metadata, strict=True)
        problems += [Problem(n, "schema", message) for n, m in lines if not names_its_source(m)]
    for event, line in zip(events, numbers, strict=True):
        event.line = line
    count = colons + (joined.count(b",") if b"[" in joined else 0)
    labelled, labels = numbers, split.labels
    if not all(labels):
        labelled, labels = list(compress(numbers, labels)), list(filter(None, labels))
    problems.sort(key=_get_line)
    return Block(
        dialect, events, problems, labelled, labels, split.line_feeds, split.record_bytes, count
    )


def _demand(holds: bool) -> None:
    if not holds:
        raise _OddError


def _split_begun(
    number: int, text: bytes, marker: bytes, *, is_text: bool, is_lenient: bool
) -> _Split | None:
    """Split lines of which each record begins one, with other lines among them; else return None.

    All may bear the label of the last one, as those of one rank do. Most lines of most logs are
    records, so that only the few others cost something each.
    """
    first, at = text.find(STEM), text.rfind(STEM)
    label = text[text.rfind(b"\n", 0, at) + 1 : at]
    if text[text.rfind(b"\n", 0, first) + 1 : first] != label:
        return None
    before, *contents = (b"\n" + text).rsplit(b"\n" + label + marker)  # much faster than split
    if not contents or STEM in label or before.rfind(STEM) >= 0:
        return None
    outside, line = [before], number + before.count(b"\n")
    numbers: Sequence[int] = range(line, line + len(contents))
    contents[-1] = contents[-1].removesuffix(b"\n")
    joined = b"".join(contents)
    if b"\n" in joined:
        lines, begun = list[int](), 0
        others = [at for at, content in enumerate(contents) if LINE_FEED in content]
        for at in others:
            contents[at], _, other = contents[at].partition(b"\n")
            if other.rfind(STEM) >= 0:
                return None
            lines += range(line, line + at + 1 - begun)
            line, begun = lines[-1] + 2 + other.count(b"\n"), at + 1
            outside.append(other)
        numbers = [*lines, *range(line, line + len(contents) - begun)]
        joined = b"".join(contents)
    if b"\0" in text or not (is_lenient or text.isascii()):
        _demand_text([label, *outside, b""], is_text, is_lenient)
    labels = () if is_lenient or not label else (label,) * len(contents)
    line_feeds = max(line - 1, numbers[-1]) - number + text.endswith(b"\n")
    record_bytes = len(text) - sum(map(len, outside))
    return _Split(contents, joined, numbers, labels, line_feeds, record_bytes)


def _split(
    number: int, text: bytes, marker: bytes, *, is_sparse: bool, is_text: bool, is_lenient: bool
) -> _Split:
    """Split lines with text before their markers, and lines without a record among them.

    Among much text, the few records are looked at one by one, and the text once only.
    """
    before, *others = text.rsplit(STEM if is_sparse else marker)
    _demand(bool(others))
    is_whole = b"\n" in others[-1]
    if not is_whole:
        others[-1] += b"\n"
    contents: Sequence[bytes]
    contents, line_ends, between = zip(*[other.partition(b"\n") for other in others], strict=True)
    _demand(all(line_ends))  # else two records stand on one line
    if is_sparse:
        rest = marker[len(STEM) :]
        _demand(all(map(bytes.startswith, contents, repeat(rest))))
        contents = [content[len(rest) :] for content in contents]
    has_lines = is_sparse
    if not is_sparse:
        outside = b"".join((before, *between))
        has_lines = b"\n" in outside
        _demand(outside.rfind(STEM) < 0)
    if b"\0" in text or not (is_lenient or text.isascii()):
        _demand_text((before, *between), is_text, is_lenient)
    labels, after = [before, *between[:-1]], between[-1]
    numbers: Sequence[int] = range(number, number + len(contents))
    record_bytes = len(text) - len(after)
    each_feeds = [len(x) - len(x.replace(b"\n", b"")) for x in labels] if has_lines else [0]
    before_each = list(accumulate(each_feeds))
    if before_each[-1]:
        numbers = list(map(add, numbers, before_each))
        record_bytes -= sum(map(len, labels))
        if not is_lenient:
            labels = [lines and lines[lines.rfind(b"\n") + 1 :] for lines in labels]
            record_bytes += sum(map(len, labels))
    line_feeds = numbers[-1] - number + is_whole + count_lines(after)
    joined, labels = b"".join(contents), [] if is_lenient else labels
    return _Split(contents, joined, numbers, labels, line_feeds, record_bytes)


def _demand_text(outside: Sequence[bytes], is_text: bool, is_lenient: bool) -> None:
    """Demand that labels are UTF-8, and all text beside records where ``is_text``."""
    if is_text:
        _demand(b"\0" not in b"".join(outside))
    if is_text and not is_lenient:
        b" ".join(outside).decode()
    elif not is_lenient:
        labels = [lines[lines.rfind(b"\n") + 1 :] for lines in outside[:-1]]
        b" ".join(labels).decode()


def _find_broken(contents: Sequence[bytes], decode: Callable[[bytes], object]) -> int:
    """Return the number of the first content that is not a sound record."""
    for number, content in enumerate(contents):
        try:
            decode(content)
        except msgspec.DecodeError:
            return number
    return 0


def _demand_different_keys(
    text: bytes, colons: int, metadata: Sequence[dict[str, Any]], events: Sequence[Event]
) -> None:
    r"""Demand that no object in the JSON of a block holds a key twice.

    msgspec does not say so, it keeps the last of two equal keys. But each key has its colon. If all
    keys were counted and there are no more colons, no key is there twice. Otherwise the same number
    of ``colons`` must be there when the objects are written again. What msgspec dropped held at
    least one, and only an escape, ``\u003a``, makes more of them.
    """
    _demand(b"\\" not in text or b"\\u003" not in text)  # most blocks have no "\\" at all
    _demand(_encode((metadata, [event.value for event in events])).count(b":") == colons)


def _all_name_their_source(metadata: Sequence[dict[str, Any]]) -> bool:
    """Return whether ``names_its_source`` holds for all, without a call for each."""
    try:
        files, lines = list(map(_get_file, metadata)), list(map(_get_lineno, metadata))
    except KeyError:
        return False
    different = set(files)
    return (
        set(map(type, different)) == {str}
        and max(map(len, different)) <= records.SOURCE_CHARACTERS_MAX
        and set(map(type, lines)) == {int}
        and min(lines) >= 0
    )
