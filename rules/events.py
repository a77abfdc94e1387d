"""The event vocabulary of a v1.0 run log: key, place, count, type of the value, metadata (rule T2).

A benchmark that trains and one that generates share what precedes the clock, and differ in what is
timed: ``EVENTS[kind]``, from ``events.yaml``. Keys are those of mllog where mllog has one. The keys
of a benchmark's hyperparameters come from its definition and are events of the settings phase too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeGuard, get_args

from cepheid.rules.documents import parse_yaml

MARKER = ":::MLLOG"
CURRENT_ROUND = (Path(__file__).parent / "rounds" / "CURRENT").read_text("utf-8").strip()
"""The value of ``submission_round``: the round that runs are for."""

Kind = Literal["train", "generate"]
EventType = Literal["INTERVAL_START", "INTERVAL_END", "POINT_IN_TIME"]
ValueType = Literal["null", "true", "integer", "number", "string", "object", "any"]
Count = Literal["once", "at most once", "at least once"]


class Phase(IntEnum):
    """The phases of a log, in their order (rule T3)."""

    IDENTITY = 0  # whose run of what this is, before initialisation
    INIT = 1  # from init_start to init_stop: settings, building, compiling, warming up
    TIMED = 2  # from run_start to run_stop: the part that is scored
    AFTER = 3  # after run_stop: what is measured then and enters no score


@dataclass(frozen=True)
class EventRule:
    """The form that the events of one key must have."""

    key: str
    phase: Phase
    count: Count = "once"
    value: ValueType = "null"
    event_type: EventType = "POINT_IN_TIME"
    metadata: tuple[str, ...] = ()
    meaning: str = ""


def _make_rule(key: str, form: Mapping[str, Any], phase: str) -> EventRule:
    form = {**form, "phase": Phase[form.get("phase", phase).upper()]}
    return EventRule(key, **{**form, "metadata": tuple(form.get("metadata", ()))})


TABLE: Mapping[str, Any] = parse_yaml(Path(__file__).with_name("events.yaml").read_text("utf-8"))
EVENTS: Mapping[Kind, Mapping[str, EventRule]] = MappingProxyType(
    {
        kind: MappingProxyType(
            {
                key: _make_rule(key, form, phase)
                for part, phase in (("identity", "identity"), ("init", "init"), (kind, "timed"))
                for key, form in TABLE[part].items()
            }
        )
        for kind in get_args(Kind)
    }
)
"""The rule of each key, by the kind of the benchmark's task."""


def find_event_type(key: str) -> EventType:
    """Return the type of an event; a key that no kind of benchmark has is a point in time."""
    for known in EVENTS.values():
        if key in known:
            return known[key].event_type
    return "POINT_IN_TIME"


CLOCK_METADATA = "monotonic_ms"  # carried by every event of a v1.0 log (rule T4)
STATUS_SUCCESS = "success"
STATUS_ABORTED = "aborted"

METADATA_TYPES: Mapping[str, ValueType] = MappingProxyType(TABLE["metadata"])
"""The type of each metadata field in the table."""

MACHINE_SHARES = ("idle_share", "stolen_share", "own_share")  # in machine_use
GENERATION_SECONDS = ("sampling_seconds", "decoding_seconds")  # lists in generation_times
NOT_DIGESTED = "not digested: "  # begins data_read, instead of a digest, where there is none
REASON_METADATA = "reason"  # a string in run_stop; a run that gave up early has it (rule T11)
INTERRUPTED_METADATA = "interrupted"  # true in run_stop of a run that did not end by itself

IMPLEMENTATION_TYPES: Mapping[str, ValueType] = MappingProxyType(TABLE["implementation"])
"""The fields that the value of ``implementation`` must have."""


def make_hyperparameter_rule(name: str) -> EventRule:
    """Make the rule for the event of a hyperparameter; T12 and T13 judge whether it must exist."""
    meaning = "a hyperparameter of the definition"
    return EventRule(name, Phase.INIT, "at most once", "any", meaning=meaning)


CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {name: tuple(choices) for name, choices in TABLE["choices"].items()}
)
"""The strings that are allowed for an event's value or a metadata field, if there are few."""


def is_blank(value: object) -> bool:
    """Return True for a text without any letter or digit, which says nothing."""
    return isinstance(value, str) and not any(map(str.isalnum, value))


_NUMBERS = (int, float)  # a union would be made anew in each of a million calls


def is_number(value: object) -> TypeGuard[int | float]:
    """Return True for a JSON number; a boolean is not one."""
    return isinstance(value, _NUMBERS) and not isinstance(value, bool)


def is_integer(value: object) -> TypeGuard[int]:
    """Return True for a JSON integer; a boolean is not one."""
    return isinstance(value, int) and not isinstance(value, bool)


_HAS_TYPE: Mapping[ValueType, Callable[[object], bool]] = {
    "null": lambda value: value is None,
    "true": lambda value: value is True,
    "integer": is_integer,
    "number": is_number,
    "string": lambda value: isinstance(value, str),
    "object": lambda value: isinstance(value, dict),
    "any": lambda value: True,
}


def has_type(value: object, expected: ValueType) -> bool:
    """Return True if a JSON value has the type that the table gives."""
    return _HAS_TYPE[expected](value)


@cache
def read_nonce() -> str:
    """Read the nonce of the current round, from which seeds follow (rule T15)."""
    file = Path(__file__).parent / "rounds" / f"{CURRENT_ROUND}.yaml"
    return str(parse_yaml(file.read_text("utf-8"))["nonce"])
