"""From the bytes of a run log to its records, within bounds and whatever the bytes are.

Two dialects are read: ``mllog``, ``:::MLLOG {json}`` with times in milliseconds, and that of MLPerf
v0.6, ``:::MLL <seconds> <key>: {json}``. Every record becomes an ``Event`` with its true line
number, and all that does not follow rule T1 a ``Problem``. Whether a problem matters is for the
checks to say: real logs have text before the marker or two records on one line, and such records
are read all the same.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, BinaryIO, NamedTuple

import orjson

from compliance.read.jsontext import decoder, is_finite, keys_within, plain_object
from rules.events import CLOCK_METADATA, MARKER, is_integer, is_number
from rules.rounds import Dialect, ProblemKind

# What a log may hold (rule T1). Hostile input is cut off here, before it costs memory or time.
LINE_BYTES_MAX = 2**20
FILE_BYTES_MAX = 256 * 2**20
RECORD_BYTES_MAX = 64 * 2**20
EVENTS_MAX = 250_000
VALUES_PER_RECORD_MAX = 20_000
VALUES_MAX = 4_000_000
PROBLEMS_MAX = 1_000  # of one kind
GOT_CHARACTERS_MAX = 1_000  # of what a problem repeats
NAME_CHARACTERS_MAX = 200  # of a key or a namespace
SOURCE_CHARACTERS_MAX = 1_000  # of metadata.file
INTEGER_MAX = 2**53  # beyond it a float, and so most readers of JSON, loses digits

FIELDS = ("namespace", "time_ms", "event_type", "key", "value", "metadata")
EVENT_TYPES = ("INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME")

_MARKER = MARKER.encode()
_STEM = b":::MLL"  # what the markers of both dialects begin with
_PLAIN = _MARKER + b" "
_V06_RECORD = re.compile(rb":::MLL ([0-9.]{1,40}) (\w{1,200}) ?:[ \t]+(\{.*\})\s*", re.DOTALL)
_V06_HEAD = re.compile(r":::MLL[ \t]+([0-9.]{1,40})[ \t]+(\w{1,200})[ \t]?:[ \t]+", re.ASCII)
_RECORD_BYTES_MIN = len(_PLAIN) + sum(map(len, FIELDS))  # of a usual line, and then some
_fields_of = itemgetter(*FIELDS)
_new_tuple = tuple.__new__


@dataclass(frozen=True)
class Problem:
    """Something on a line (None: the file as a whole) that does not follow rule T1.

    ``lost`` says that a record could not be read, so that what follows from a complete log cannot
    be judged.
    """

    line: int | None
    kind: ProblemKind
    message: str
    got: str = ""
    lost: bool = False


class Event(NamedTuple):
    """One record. ``line`` counts the lines of the file from 1; times are in milliseconds.

    ``monotonic_ms`` is None where ``metadata.monotonic_ms`` is no number. (A tuple, because
    a frozen dataclass takes longer to make than its line takes to parse.)
    """

    line: int
    time_ms: float
    monotonic_ms: float | None
    event_type: str
    key: str
    value: Any
    metadata: Mapping[str, Any]


class _StopReadingError(Exception):
    """A bound was reached: nothing after this line is read."""


@dataclass
class Reading:
    """What has been read so far, and how much of what is bounded is used up."""

    events: list[Event] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    problem_counts: dict[ProblemKind, int] = field(default_factory=dict)
    dialects: dict[Dialect, int] = field(default_factory=dict)  # and the first line of each
    record_bytes: int = 0
    values: int = 0
    is_text: bool = True
    not_finite: set[int] = field(default_factory=set)  # lines that hold NaN or an infinite number
    lines_read: int = 0
    is_stopped: bool = False  # a bound was reached: nothing more is read

    def problem(
        self, line: int | None, kind: ProblemKind, message: str, got: str = "", lost: bool = False
    ) -> None:
        """Note a problem; of each kind the first thousand are kept.

        More of a kind by which records are lost end the reading. Others do not: a rank may stand
        before each record of a log that is sound otherwise.
        """
        self.problem_counts[kind] = self.problem_counts.get(kind, 0) + 1
        if self.problem_counts[kind] <= PROBLEMS_MAX:
            self.problems.append(Problem(line, kind, message, got[:GOT_CHARACTERS_MAX], lost))
        elif lost:
            last = Problem(line, "file", f"more than {PROBLEMS_MAX} problems", lost=True)
            self.problems.append(last)
            raise _StopReadingError

    def lines(self, file: BinaryIO) -> None:
        """All of a file."""
        for chunk in _whole_lines(file):
            if self.is_stopped:
                break
            self.more(chunk)

    def more(self, chunk: bytes) -> None:
        """The next lines: none of them too long but the last."""
        if not self.is_stopped:
            try:
                self.lines_read += self.chunk(self.lines_read + 1, chunk)
            except _StopReadingError:
                self.is_stopped = True

    def chunk(self, number: int, chunk: bytes) -> int:
        """Some lines, the first of them line ``number``; returns how many they are.

        Looks for markers rather than at every line, so that other output costs next to nothing.
        """
        first, lines, chunk = number, chunk.count(b"\n"), self.without_long_line(number, chunk)
        at = 0
        while (found := chunk.find(_STEM, at)) >= 0:
            start = at
            if found > at:
                start = max(at, chunk.rfind(b"\n", at, found) + 1)
                self.other_text(number, chunk[at:start])
                number += chunk.count(b"\n", at, start)
            if found == start:
                number, at = self.plain_lines(number, chunk, start)
                if at > start:
                    continue
            end = chunk.find(b"\n", found) + 1 or len(chunk)
            self.line_with_marker(number, chunk[start:end])
            number, at = number + 1, end
        self.other_text(number, chunk[at:])
        last = chunk[chunk.rfind(b"\n") + 1 :]
        if last and _MARKER.startswith(last):
            message = "the log ends in the middle of a record"
            self.problem(first + lines, "truncated", message, lost=True)
        return lines

    def without_long_line(self, number: int, chunk: bytes) -> bytes:
        """The chunk without its last line if that is too long: no other one can be."""
        start = chunk.rfind(b"\n", 0, len(chunk) - 1) + 1
        if len(chunk) - start <= LINE_BYTES_MAX:
            return chunk
        message = f"the line is longer than {LINE_BYTES_MAX // 2**20} MiB"
        self.problem(number + chunk.count(b"\n", 0, start), "text", message, lost=True)
        return chunk[:start]

    def other_text(self, number: int, text: bytes) -> None:
        """Lines without a record matter only where they show that the file is not text."""
        if not self.is_text or (text.isascii() and b"\0" not in text):
            return
        at, message = text.find(b"\0"), "the file holds NUL bytes"
        if at < 0:
            at, message = _not_utf8(text), "the file is not UTF-8 text"
        if at >= 0:
            self.is_text = False  # one finding says it
            self.problem(number + text.count(b"\n", 0, at), "text", message)

    def plain_lines(self, number: int, chunk: bytes, at: int) -> tuple[int, int]:
        """The usual lines, from ``at`` on: the marker and one object as it should be. Returns
        number and place of the first line that is none, or may not fit into the bounds.

        Nearly all lines of nearly all logs are read here, so this is written for speed.
        """
        first, first_number, values = at, number, self.values
        if (  # of values, each takes two bytes or more
            self.record_bytes + len(chunk) > RECORD_BYTES_MAX
            or values + len(chunk) // 2 > VALUES_MAX
            or len(self.events) + len(chunk) // _RECORD_BYTES_MIN > EVENTS_MAX
        ):
            return number, at
        add, find, head, has_lists = self.events.append, chunk.find, len(_PLAIN), b"[" in chunk
        while chunk.startswith(_PLAIN, at):
            end = find(b"\n", at) + 1
            line = chunk[at + head : end]  # empty for a line that does not end
            try:
                record = orjson.loads(line)
                namespace, time_ms, event_type, key, value, metadata = _fields_of(record)
                fields, file, lineno = 6 + len(metadata), metadata["file"], metadata["lineno"]
            except (ValueError, TypeError, KeyError):
                break
            if type(value) is dict:
                fields += len(value)
            metrics = metadata.get("metrics")
            if type(metrics) is dict:
                fields += len(metrics)
            if (
                # Nested deeper, or a colon in a string, or a key that is there twice: an object has
                # a colon for each of its keys. A list may hold anything.
                line.count(b":") != fields
                or (has_lists and b"[" in line)
                or len(record) != 6
                or type(time_ms) is not int
                or not 0 <= time_ms < INTEGER_MAX
                or event_type not in EVENT_TYPES
                or type(key) is not str
                or not key
                or len(key) > NAME_CHARACTERS_MAX
                or type(namespace) is not str
                or len(namespace) > NAME_CHARACTERS_MAX
                or type(file) is not str
                or len(file) > SOURCE_CHARACTERS_MAX
                or type(lineno) is not int
                or lineno < 0
                or fields > VALUES_PER_RECORD_MAX
            ):
                break
            monotonic_ms = metadata.get(CLOCK_METADATA)
            if monotonic_ms is not None and type(monotonic_ms) is not float:
                monotonic_ms = monotonic_ms if is_number(monotonic_ms) else None
            event = (number, time_ms, monotonic_ms, event_type, key, value, metadata)
            add(_new_tuple(Event, event))
            values += fields
            number, at = number + 1, end
        self.values = values
        self.record_bytes += at - first
        if at > first:
            self.dialects.setdefault("mllog", first_number)
        return number, at

    def line_with_marker(self, number: int, line: bytes) -> None:
        """Any other line with a record, within the bounds."""
        self.record_bytes += len(line)
        if self.record_bytes > RECORD_BYTES_MAX:
            message = f"the records are larger than {RECORD_BYTES_MAX // 2**20} MiB together"
            self.problem(number, "file", message, lost=True)
            raise _StopReadingError
        # A cheap upper bound on what parsing creates: "[[],[],…" costs 30 times its size.
        values = line.count(b",") + line.count(b"[") + line.count(b"{")
        self.values += values
        if self.values > VALUES_MAX:
            message = f"the log holds more than {VALUES_MAX:,} values"
            self.problem(number, "file", message, lost=True)
            raise _StopReadingError
        if values > VALUES_PER_RECORD_MAX:
            message = f"the record holds more than {VALUES_PER_RECORD_MAX:,} values"
            self.problem(number, "json", message, lost=True)
            return
        if not self.nested_record(number, line):
            self.other_records(number, line)

    def nested_record(self, number: int, line: bytes) -> bool:
        """The marker and one object. False where it needs a closer look."""
        if line.startswith(_PLAIN):
            record = plain_object(line[len(_PLAIN) :])
            if record is None:
                return False
            self.record(number, record)
            return True
        matched = _V06_RECORD.fullmatch(line)
        content = plain_object(matched[3]) if matched else None
        if matched is None or not isinstance(content, dict):
            return False
        self.v06_record(number, matched[1].decode(), matched[2].decode(), content)
        return True

    def other_records(self, number: int, line: bytes) -> None:
        """A line as it should not be: text around the record, several records, broken JSON."""
        encoding = "utf-8"
        if _not_utf8(line) >= 0:
            self.problem(number, "text", "the line is not UTF-8 text")
            encoding = "latin-1"  # whatever the bytes are, each is a character there
        text = line.decode(encoding).rstrip()
        at = text.index(_STEM.decode())
        if text[:at].strip():
            self.problem(number, "around", "text stands before the marker", text[:at])
        elif at > 0:
            self.problem(number, "around", "blanks stand before the marker")
        elif text.startswith(MARKER) and not text.startswith(MARKER + " "):
            self.problem(number, "place", "no blank follows the marker")
        while at >= 0:
            duplicates: list[str] = []
            head = None if text.startswith(MARKER, at) else _V06_HEAD.match(text, at)
            start = head.end() if head else _after_blanks(text, at + len(MARKER))
            try:
                if head is None and not text.startswith(MARKER, at):
                    raise ValueError("no dialect has such a line")
                record, end = decoder(duplicates).raw_decode(text, start)
                if keys_within(record) is None:
                    raise ValueError("nested too deeply")
            except (ValueError, RecursionError):
                broken_at, at = at, text.find(_STEM.decode(), at + len(_STEM))
                if at < 0 and not line.endswith(b"\n"):
                    message = "the log ends in the middle of this record"
                    self.problem(number, "truncated", message, text[-60:], lost=True)
                else:
                    broken = text[broken_at : at if at >= 0 else None]
                    message = "what follows the marker is not JSON"
                    self.problem(number, "json", message, broken, lost=True)
                continue
            if duplicates:
                message = f'the record holds "{duplicates[0]}" more than once'
                self.problem(number, "fields", message)
            if not is_finite(record):
                self.not_finite.add(number)
            if head:
                self.v06_record(number, head[1], head[2], record)
            else:
                self.record(number, record)
            at = text.find(_STEM.decode(), end)
            self.text_between(number, text[end : at if at >= 0 else None], is_last=at < 0)

    def text_between(self, number: int, between: str, is_last: bool) -> None:
        """What stands after a record. A carriage return ends a line too: progress bars write it."""
        if between.lstrip(" \t").startswith("\r"):
            self.problem(number, "around", "a carriage return follows the record", between.strip())
        elif between.strip():
            self.problem(number, "place", "text stands after the record", between.strip())
        elif not is_last:
            self.problem(number, "place", "several records stand on one line")

    def v06_record(self, number: int, seconds: str, key: str, content: object) -> None:
        """A record in the dialect of MLPerf v0.6, as one of today's."""
        if not isinstance(content, dict):
            message = "what follows the key is not a JSON object"
            self.problem(number, "json", message, type(content).__name__, lost=True)
            return
        try:
            time_ms: float | None = round(float(seconds) * 1000, 3)
        except ValueError:  # for example 1.2.3
            time_ms = None
        self.record(number, {**content, "time_ms": time_ms, "key": key}, "mll")

    def record(self, number: int, record: object, dialect: Dialect = "mllog") -> None:
        """One JSON value that followed a marker, as an event if it is one."""
        if not isinstance(record, dict):
            message = "what follows the marker is not a JSON object"
            self.problem(number, "json", message, type(record).__name__, lost=True)
            return
        if len(self.events) >= EVENTS_MAX:
            message = f"the log holds more than {EVENTS_MAX:,} records"
            self.problem(number, "file", message, lost=True)
            raise _StopReadingError
        key, time_ms = record.get("key"), record.get("time_ms")
        if not isinstance(key, str) or not key:
            message = "the record has no key, a string that is not empty"
            self.problem(number, "fields", message, _shown_field(record, "key"), lost=True)
            return
        if not is_number(time_ms) or not 0 <= time_ms < INTEGER_MAX:
            message = f'time_ms of "{key[:80]}" is not a time in milliseconds'
            self.problem(number, "fields", message, _shown_field(record, "time_ms"), lost=True)
            return
        metadata = record.get("metadata")
        self.dialects.setdefault(dialect, number)
        self.needed_fields(number, record)
        if dialect == "mllog":
            self.schema(number, record)
        if not isinstance(metadata, dict):
            metadata = {}
        monotonic_ms = metadata.get(CLOCK_METADATA)
        if not is_number(monotonic_ms) or not math.isfinite(monotonic_ms):
            monotonic_ms = None
        event_type = record.get("event_type")
        self.events.append(
            Event(
                line=number,
                time_ms=time_ms,
                monotonic_ms=monotonic_ms,
                event_type=event_type if isinstance(event_type, str) else "",
                key=key,
                value=record.get("value"),
                metadata=metadata,
            )
        )

    def needed_fields(self, number: int, record: Mapping[str, Any]) -> None:
        """Whether a record has what every dialect asks for: a value and metadata."""
        if "value" not in record:
            self.problem(number, "fields", 'the record lacks "value"')
        if not isinstance(record.get("metadata"), dict):
            if "metadata" in record:
                self.wrong_field(number, record, "fields", "metadata", "is not an object")
            else:
                self.problem(number, "fields", 'the record lacks "metadata"')

    def schema(self, number: int, record: Mapping[str, Any]) -> None:
        """Whether the other fields are exactly those of ``event.schema.json``, with their types."""
        if len(record) != len(FIELDS) or any(name not in record for name in FIELDS):
            for name in ("namespace", "event_type"):
                if name not in record:
                    self.problem(number, "schema", f'the record lacks "{name}"')
            for name in sorted(record.keys() - set(FIELDS)):
                self.problem(number, "schema", f'the record has a field "{name[:80]}" too many')
        if not is_integer(record["time_ms"]):
            self.wrong_field(number, record, "schema", "time_ms", "is not an integer")
        if len(record["key"]) > NAME_CHARACTERS_MAX:
            self.wrong_field(number, record, "schema", "key", "is too long")
        namespace = record.get("namespace", "")
        if not isinstance(namespace, str) or len(namespace) > NAME_CHARACTERS_MAX:
            self.wrong_field(number, record, "schema", "namespace", "is not a short string")
        if record.get("event_type", EVENT_TYPES[0]) not in EVENT_TYPES:
            wrong = f"is none of {', '.join(EVENT_TYPES)}"
            self.wrong_field(number, record, "schema", "event_type", wrong)
        metadata = record.get("metadata")
        if isinstance(metadata, dict) and not _names_its_source(metadata):
            message = "metadata does not name the file and lineno that wrote the record"
            self.problem(number, "schema", message)

    def wrong_field(
        self, number: int, record: Mapping[str, Any], kind: ProblemKind, name: str, wrong: str
    ) -> None:
        self.problem(number, kind, f"{name} {wrong}", _shown_field(record, name))


def _names_its_source(metadata: Mapping[str, Any]) -> bool:
    file, lineno = metadata.get("file"), metadata.get("lineno")
    is_file = isinstance(file, str) and len(file) <= SOURCE_CHARACTERS_MAX
    return is_file and is_integer(lineno) and lineno >= 0


def _whole_lines(file: BinaryIO) -> Iterator[bytes]:
    """The file in pieces that end where a line ends. Of a line that is too long only a part that
    is too long as well is in a piece; nothing is read beyond the bound of a file.
    """
    total_bytes = 0
    while total_bytes <= FILE_BYTES_MAX and (chunk := file.read(LINE_BYTES_MAX)):
        if not chunk.endswith(b"\n"):
            chunk += file.readline(LINE_BYTES_MAX + 1)
        total_bytes += len(chunk)
        is_cut = len(chunk) > LINE_BYTES_MAX and not chunk.endswith(b"\n")
        while is_cut and total_bytes <= FILE_BYTES_MAX and (rest := file.readline(LINE_BYTES_MAX)):
            total_bytes += len(rest)
            if rest.endswith(b"\n"):
                chunk += b"\n"
                break
        yield chunk


def _not_utf8(text: bytes) -> int:
    """Where ``text`` stops being UTF-8, or -1."""
    try:
        text.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.start
    return -1


def _after_blanks(text: str, start: int) -> int:
    while start < len(text) and text[start].isspace():
        start += 1
    return start


def _shown_field(record: Mapping[str, Any], name: str) -> str:
    return json.dumps(record[name])[:200] if name in record else "nothing"
