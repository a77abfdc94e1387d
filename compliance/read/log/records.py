"""What a run log is made of: records and their JSON, problems with their form, bounds (rule T1)."""

import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from sys import intern
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct

from cepheid.rules.events import CLOCK_METADATA, is_number
from cepheid.rules.rounds import ProblemKind

# What a log may hold. Hostile input is cut off here, before it costs memory or time.
LINE_BYTES_MAX = 2**20
PIECE_BYTES = 128 * 2**10  # of a file that are read at once: more of them take longer
FILE_BYTES_MAX = 256 * 2**20
RECORD_BYTES_MAX = 64 * 2**20
EVENTS_MAX = 250_000
LONG_EVENTS = 20_000  # a log with more of them is read for less memory
VALUES_PER_RECORD_MAX = 20_000
VALUES_MAX = 4_000_000
PROBLEMS_MAX = 100  # of one kind
TOO_MANY = f"more than {PROBLEMS_MAX} problems"
GOT_CHARACTERS_MAX = 1_000  # of the text that a problem quotes
NAME_CHARACTERS_MAX = 200  # of a key or a namespace
SOURCE_CHARACTERS_MAX = 1_000  # of metadata.file
INTEGER_MAX = 2**53  # a float, and so most readers of JSON, loses digits of larger integers

FIELDS = ("namespace", "time_ms", "event_type", "key", "value", "metadata")
EVENT_TYPES = ("INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME")
UNTYPED = 'the record lacks "event_type"'  # as all records of some logs do


class Problem(NamedTuple):
    """Something on a line (None: the file as a whole) that does not follow rule T1.

    ``lost`` says that a record could not be read. Then no check can judge what follows from a
    complete log. ``foreign`` says that it was read although mlcommons' checker, as other programs,
    does not: packed files, and records wrapped by a terminal. ``case`` is that of the code of T1
    where the cause is known, ``column`` (from 1) where on the line it shows.
    """

    line: int | None
    kind: ProblemKind
    message: str
    got: str = ""
    lost: bool = False
    case: str = ""
    column: int | None = None
    foreign: bool = False


class Event(Struct, kw_only=True, eq=False, gc=False):
    """One record, equal to itself alone. Nothing changes it once it has its line.

    ``line`` counts the lines of the file from 1; times are in milliseconds.
    """

    namespace: Any = ""
    time_ms: float
    event_type: str
    key: str
    value: Any
    metadata: dict[str, Any]
    line: int = 0

    @property
    def monotonic_ms(self) -> float | None:
        """``metadata.monotonic_ms``, or None where that is not a finite number."""
        clock = self.metadata.get(CLOCK_METADATA)
        if type(clock) is float:  # of nearly all records, and each is asked several times
            return clock if math.isfinite(clock) else None
        return clock if is_number(clock) and math.isfinite(clock) else None


def share_texts(events: Iterable[Event]) -> None:
    """Let equal keys and file names be one text each: a long log takes a seventh less memory."""
    for event in events:
        event.key, file = intern(event.key), event.metadata.get("file")
        if type(file) is str:
            event.metadata["file"] = intern(file)


_Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Flat = _Int64 | float | str | bool | None
_Shallow = _Flat | list[_Flat] | dict[str, _Flat]
_Nested = _Flat | list[_Shallow] | dict[str, _Shallow]
SOUND_VALUE = _Flat | list[_Nested] | dict[str, _Nested]


class OldEvent(Event, kw_only=True, eq=False, gc=False, forbid_unknown_fields=True):
    """A record of v0.6 without a problem, whose line says time and key before the JSON."""

    time_ms: float = 0.0
    event_type: str = ""
    key: str = ""
    value: SOUND_VALUE
    metadata: dict[str, SOUND_VALUE]


class SoundEvent(Event, kw_only=True, eq=False, gc=False, forbid_unknown_fields=True):
    """A record in which msgspec finds no problem while it decodes the line.

    The types say what rule T1 wants of each field. ``reading.py`` itself reads larger integers and
    deeper nesting. Still, a key may be there twice, and the source may be missing.
    """

    namespace: Annotated[str, Meta(max_length=NAME_CHARACTERS_MAX)]
    time_ms: Annotated[int, Meta(ge=0, lt=INTEGER_MAX)]
    event_type: Literal["INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"] = ""  # type: ignore[assignment]
    key: Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS_MAX)]
    value: SOUND_VALUE
    metadata: dict[str, SOUND_VALUE]


def names_its_source(metadata: Mapping[str, Any]) -> bool:
    """Return whether metadata name the file and the line of code that wrote the record."""
    file, lineno = metadata.get("file"), metadata.get("lineno")
    is_file = isinstance(file, str) and len(file) <= SOURCE_CHARACTERS_MAX
    is_line = isinstance(lineno, int) and not isinstance(lineno, bool) and lineno >= 0
    return is_file and is_line


NESTING_MAX = 32

_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_MANY_DIGITS = b"0" * 19  # 2**63 has so many
_decode = msgspec.json.Decoder().decode


def parse_plain(text: bytes) -> object | None:
    """Return the JSON of a record, or None where something about it needs a closer look."""
    try:
        record = _decode(text)
    except (ValueError, RecursionError):  # not UTF-8 is a ValueError, too
        return None
    if _MANY_DIGITS in text.translate(_ZEROS):  # perhaps an integer of more than 64 bits
        return None
    keys = count_keys(record)
    # None: nested deeply. Another count: a colon in a string, or a key that is there twice.
    return record if keys is not None and keys == text.count(b":") else None


def make_decoder(duplicates: list[str]) -> json.JSONDecoder:
    """Return a slower decoder that reads NaN and adds duplicate keys to a list."""

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        record = dict(items)
        if len(record) < len(items):
            seen: set[str] = set()
            for key, _ in items:
                if key in seen:
                    duplicates.append(key[:80])
                    break
                seen.add(key)
        return record

    def integer(digits: str) -> float:
        number = int(digits) if len(digits) <= 20 else 2**64
        return number if -(2**63) <= number < 2**64 else float(digits)

    return json.JSONDecoder(object_pairs_hook=pairs, parse_int=integer)


def count_keys(record: object) -> int | None:
    """Return the number of object keys at all depths, or None if the nesting is too deep."""
    keys = 0
    layer = [record]
    for _ in range(NESTING_MAX):
        inner: list[Any] = []
        for value in layer:
            if isinstance(value, dict):
                keys += len(value)
                inner.extend(item for item in value.values() if isinstance(item, dict | list))
            elif isinstance(value, list):
                inner.extend(item for item in value if isinstance(item, dict | list))
        if not inner:
            return keys
        layer = inner
    return None


def is_finite(value: object) -> bool:
    """Return False if a value holds NaN or an infinite number, which is not JSON."""
    if isinstance(value, float):
        return math.isfinite(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(map(is_finite, inner))


def count_lines(text: bytes) -> int:
    """Count the line feeds of much text: leaving them out takes a third of ``text.count``."""
    return len(text) - len(text.replace(b"\n", b""))


def read_pieces(file: io.BufferedReader) -> Iterator[bytes]:
    """Return the file in pieces that end where a line ends.

    Of a line that is too long, a piece holds a part that is too long as well. Nothing is read
    beyond the bound of a file.
    """
    most = LINE_BYTES_MAX
    total_bytes = 0
    while total_bytes <= FILE_BYTES_MAX and (chunk := file.read(min(PIECE_BYTES, most))):
        if not chunk.endswith(b"\n"):
            chunk += file.readline(most + 1)
        total_bytes += len(chunk)
        is_cut = len(chunk) > most and not chunk.endswith(b"\n")
        while is_cut and total_bytes <= FILE_BYTES_MAX and (rest := file.readline(most)):
            total_bytes += len(rest)
            if rest.endswith(b"\n"):
                chunk += b"\n"
                break
        yield chunk
