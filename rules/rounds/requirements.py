"""The requirements of a round of MLPerf on the records of a log, as data.

A requirement is about the records of one key: how many there are, which values and metadata they
may have, and which records come before them. ``rounds/*.yaml`` lists them; rules M1 to M6 of
``mlperf.md`` say what each part means. Nothing here is evaluated as code.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from cepheid.rules.events import is_number

RequiredCount = Literal["once", "strictly once", "at least once", "never"]

CLOSE = 1e-5  # how far a quotient may be from an integer that it is to be


@dataclass(frozen=True)
class Condition:
    """A condition on a value: all its parts must hold. Bounds hold for numbers only."""

    asked: Mapping[str, Any]

    def holds(self, value: object) -> bool:
        """Return whether a value is as asked."""
        for test, operand in self._tests:  # noqa: SIM110 (all() takes twice as long)
            if not test(value, operand):
                return False
        return True

    @cached_property
    def _tests(self) -> tuple[tuple[Callable[[Any, Any], bool], Any], ...]:
        return tuple((CONDITIONS[name][1], operand) for name, operand in self.asked.items())

    def __str__(self) -> str:
        """Return the text for a finding: ``at least 0.759, below 1.0``."""
        return ", ".join(
            f"{CONDITIONS[name][0]} {_text(operand)}" for name, operand in self.asked.items()
        )


def _text(operand: object) -> str:
    said = [json.dumps(one) for one in (operand if isinstance(operand, list) else [operand])]
    return ", ".join(said)


def _is_near_integer(value: float) -> bool:
    return math.isfinite(value) and abs(round(value) - value) < CLOSE


def _is_power_of_two_times(value: object, unit: float) -> bool:
    return is_number(value) and value > 0 and _is_near_integer(math.log2(value / unit))


def _length(value: object) -> int:
    """Return the number of elements or characters, or -1 for a value without a length."""
    return len(value) if isinstance(value, list | str | dict) else -1


# The vocabulary of conditions: how a finding says each, and whether it holds for a JSON value and
# the operand that the YAML file gives.
CONDITIONS: Mapping[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "equals": ("equal to", lambda value, operand: value == operand),
    "differs_from": ("other than", lambda value, operand: value != operand),
    "one_of": ("one of", lambda value, operand: value in operand),
    "above": ("above", lambda value, operand: is_number(value) and value > operand),
    "below": ("below", lambda value, operand: is_number(value) and value < operand),
    "min": ("at least", lambda value, operand: is_number(value) and value >= operand),
    "max": ("at most", lambda value, operand: is_number(value) and value <= operand),
    "close_to": (
        "close to",
        lambda value, operand: is_number(value) and math.isclose(value, operand),
    ),
    "multiple_of": (
        "a multiple of",
        lambda value, unit: is_number(value) and _is_near_integer(value / unit),
    ),
    "power_of_two_times": ("a power of two times", _is_power_of_two_times),
    "is_boolean": ("a boolean:", lambda value, operand: isinstance(value, bool) is operand),
    "length": ("of length", lambda value, operand: _length(value) == operand),
    "length_min": ("of a length of at least", lambda value, operand: _length(value) >= operand),
}


@dataclass(frozen=True)
class Metadata:
    """The metadata that a record must have.

    ``has``: all of these fields. ``has_one_of``: at least one of these. ``having``: a record with
    the first field has the others too. ``values``: conditions on fields, if they are present.
    """

    has: tuple[str, ...] = ()
    has_one_of: tuple[str, ...] = ()
    having: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    values: Mapping[str, Condition] = field(default_factory=dict)


@dataclass(frozen=True)
class Within:
    """A limit in minutes after the first record of ``since``; the limit itself is excluded."""

    since: str
    minutes: float


@dataclass(frozen=True)
class Requirement:
    """The requirement on the records of one key.

    Records of one of the keys ``or_else`` may stand in their place (rule M1).
    """

    key: str
    count: RequiredCount | None
    or_else: tuple[str, ...]
    value: Condition | None
    some_value: Condition | None
    metadata: Metadata | None
    after: tuple[str, ...]
    not_after: tuple[str, ...]
    later_than: tuple[str, ...]
    within: Within | None


@dataclass(frozen=True)
class Requirements:
    """Requirements that apply together.

    They apply to a log that has, for each key of ``when``, a record with that value, and for no key
    of ``unless`` a record with that value.
    """

    when: Mapping[str, Any]
    unless: Mapping[str, Any]
    of_keys: tuple[Requirement, ...]

    def __str__(self) -> str:
        """Return when they apply, for a finding: ``(division closed, opt_name lars) ``."""
        said = [f"{key} {value}" for key, value in self.when.items()]
        said += [f"not {key} {value}" for key, value in self.unless.items()]
        return f"({', '.join(said)}) ".replace("submission_", "") if said else ""


def parse(group: Mapping[str, Any]) -> Requirements:
    """Parse a group of requirements of a round's YAML, validated by ``round.schema.json``."""
    of_keys = tuple(_requirement(key, asked) for key, asked in group["keys"].items())
    return Requirements(group.get("when", {}), group.get("unless", {}), of_keys)


def _requirement(key: str, asked: Mapping[str, Any]) -> Requirement:
    within = asked.get("within")
    return Requirement(
        key,
        asked.get("count"),
        tuple(asked.get("or_else", ())),
        _condition(asked, "value"),
        _condition(asked, "some_value"),
        _metadata(asked["metadata"]) if "metadata" in asked else None,
        tuple(asked.get("after", ())),
        tuple(asked.get("not_after", ())),
        tuple(asked.get("later_than", ())),
        Within(within["since"], within["minutes"]) if within else None,
    )


def _metadata(asked: Mapping[str, Any]) -> Metadata:
    return Metadata(
        tuple(asked.get("has", ())),
        tuple(asked.get("has_one_of", ())),
        {name: tuple(also) for name, also in asked.get("having", {}).items()},
        {name: Condition(value) for name, value in asked.get("values", {}).items()},
    )


def _condition(asked: Mapping[str, Any], name: str) -> Condition | None:
    return Condition(asked[name]) if name in asked else None
