"""The event vocabulary agrees with the rule book, and its types are total."""

import pytest

from rules.definition import ROOT
from rules.events import (
    CHOICES,
    CLOCK_METADATA,
    EVENTS,
    IMPLEMENTATION_TYPES,
    METADATA_TYPES,
    REASON_METADATA,
    Phase,
    has_type,
    hyperparameter_rule,
)

T2 = (ROOT / "rules" / "training.md").read_text(encoding="utf-8").split("### T2")[1].split("###")[0]


def rows(heading: str) -> list[list[str]]:
    """The rows of the tables under T2 that begin with a heading."""
    tables = [table.splitlines() for table in T2.split("\n\n") if table.startswith("|")]
    found = [line for table in tables if table[0].startswith(heading) for line in table[2:]]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found]


def test_the_rule_book_has_the_table_of_events() -> None:
    """A vendor complies by the rule book alone, so it says all that the table in code says."""
    of_code = [
        [
            rule.phase.name.lower(),
            f"`{rule.key}`",
            rule.count,
            f"`{rule.event_type}`",
            rule.value,
            ", ".join(f"`{name}`" for name in rule.metadata) or "–",
            rule.meaning,
        ]
        for rule in EVENTS.values()
    ]
    *of_book, hyperparameters = rows("| phase |")
    assert of_book == of_code
    rule = hyperparameter_rule("opt_name")
    assert hyperparameters[0] == rule.phase.name.lower()
    assert hyperparameters[2:4] == [rule.count, f"`{rule.event_type}`"]


def test_the_rule_book_tells_every_field_of_metadata_and_of_the_implementation() -> None:
    types = {field.strip("`"): type_name for field, type_name, _ in rows("| field |")}
    assert types.pop("file`, `lineno") == "string, integer"
    asked = {CLOCK_METADATA: "number", REASON_METADATA: "string"}
    assert types == {**METADATA_TYPES, **IMPLEMENTATION_TYPES, **asked}
    meanings = {field.strip("`"): meaning for field, _, meaning in rows("| field |")}
    for name in set(CHOICES) & set(METADATA_TYPES):
        assert all(f"`{choice}`" in meanings[name] for choice in CHOICES[name])


@pytest.mark.parametrize("event", EVENTS.values(), ids=lambda event: event.key)
def test_an_event_is_described(event: object) -> None:
    rule = EVENTS[event.key]  # type: ignore[attr-defined]
    assert rule.key == rule.key.lower()
    assert rule.meaning
    assert set(rule.metadata) <= set(METADATA_TYPES)
    assert CLOCK_METADATA not in rule.metadata
    is_interval = rule.key.endswith(("_start", "_stop"))
    assert is_interval == (rule.event_type != "POINT_IN_TIME")


def test_choices_are_of_known_events_or_metadata() -> None:
    assert set(CHOICES) <= set(EVENTS) | set(METADATA_TYPES)


def test_each_phase_has_events() -> None:
    assert {rule.phase for rule in EVENTS.values()} == set(Phase)


@pytest.mark.parametrize(
    ("value", "types"),
    [
        (None, {"null", "any"}),
        (True, {"true", "any"}),
        (False, {"any"}),
        (0, {"integer", "number", "any"}),
        (1.0, {"number", "any"}),
        ("", {"string", "any"}),
        ({}, {"object", "any"}),
        ([], {"any"}),
    ],
)
def test_a_value_has_these_types_only(value: object, types: set[str]) -> None:
    every = ("null", "true", "integer", "number", "string", "object", "any")
    assert {name for name in every if has_type(value, name)} == types  # type: ignore[arg-type]
