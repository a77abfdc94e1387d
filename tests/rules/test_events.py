"""The event vocabulary agrees with the rule book, and its types are total."""

import pytest

from rules.definition import ROOT
from rules.events import CHOICES, CLOCK_METADATA, EVENTS, METADATA_TYPES, Phase, has_type

T2 = (ROOT / "rules" / "training.md").read_text(encoding="utf-8").split("### T2")[1].split("###")[0]


@pytest.mark.parametrize("key", EVENTS)
def test_the_rule_book_names_every_event(key: str) -> None:
    assert f"`{key}`" in T2


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
