"""What a run log is made of: records, problems with their form, and bounds (rule T1)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from rules.rounds import ProblemKind

# What a log may hold. Hostile input is cut off here, before it costs memory or time.
LINE_BYTES_MAX = 2**20
FILE_BYTES_MAX = 256 * 2**20
RECORD_BYTES_MAX = 64 * 2**20
EVENTS_MAX = 250_000
VALUES_PER_RECORD_MAX = 20_000
VALUES_MAX = 4_000_000
PROBLEMS_MAX = 1_000  # of one kind
GOT_CHARACTERS_MAX = 1_000  # of the text that a problem quotes
NAME_CHARACTERS_MAX = 200  # of a key or a namespace
SOURCE_CHARACTERS_MAX = 1_000  # of metadata.file
INTEGER_MAX = 2**53  # a float, and so most readers of JSON, loses digits of larger integers

FIELDS = ("namespace", "time_ms", "event_type", "key", "value", "metadata")
EVENT_TYPES = ("INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME")


class Problem(NamedTuple):
    """Something on a line (None: the file as a whole) that does not follow rule T1.

    ``lost`` says that a record could not be read. Then no check can judge what follows from a
    complete log.
    """

    line: int | None
    kind: ProblemKind
    message: str
    got: str = ""
    lost: bool = False


class Event(NamedTuple):
    """One record. ``line`` counts the lines of the file from 1; times are in milliseconds.

    ``monotonic_ms`` is None where ``metadata.monotonic_ms`` is not a number. Events are tuples
    because creating a frozen dataclass takes longer than parsing its line.
    """

    line: int
    time_ms: float
    monotonic_ms: float | None
    event_type: str
    key: str
    value: Any
    metadata: Mapping[str, Any]


def names_its_source(metadata: Mapping[str, Any]) -> bool:
    """Return whether metadata name the file and the line of code that wrote the record."""
    file, lineno = metadata.get("file"), metadata.get("lineno")
    is_file = isinstance(file, str) and len(file) <= SOURCE_CHARACTERS_MAX
    is_line = isinstance(lineno, int) and not isinstance(lineno, bool) and lineno >= 0
    return is_file and is_line
