"""The event vocabulary agrees with the rule book, and its types are total."""

from collections.abc import Iterable

import pytest

from cepheid.rules.events import (
    CHOICES,
    CLOCK_METADATA,
    EVENTS,
    IMPLEMENTATION_TYPES,
    INTERRUPTED_METADATA,
    METADATA_TYPES,
    REASON_METADATA,
    EventRule,
    Phase,
    find_event_type,
    has_type,
    make_hyperparameter_rule,
)
from cepheid.rules.installation import ROOT

T2 = (ROOT / "rules" / "training.md").read_text(encoding="utf-8").split("### T2")[1].split("###")[0]


def rows(heading: str) -> list[list[str]]:
    """The rows of the tables under T2 that begin with a heading."""
    tables = [table.splitlines() for table in T2.split("\n\n") if table.startswith("|")]
    found = [line for table in tables if table[0].startswith(heading) for line in table[2:]]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found]


ALL = [rule for known in EVENTS.values() for rule in known.values()]


def as_rows(rules: Iterable[EventRule]) -> list[list[str]]:
    """As the rule book writes them."""
    return [
        [
            rule.phase.name.lower(),
            f"`{rule.key}`",
            rule.count,
            f"`{rule.event_type}`",
            rule.value,
            ", ".join(f"`{name}`" for name in rule.metadata) or "–",
            rule.meaning,
        ]
        for rule in rules
    ]


def test_the_rule_book_has_the_tables_of_events() -> None:
    """A vendor complies by the rule book alone, so it says all that the tables in code say."""
    training, generation = EVENTS["train"], EVENTS["generate"]
    *of_book, hyperparameters = rows("| phase |")
    assert of_book == as_rows(training.values())
    own = [rule for key, rule in generation.items() if rule.phase >= Phase.TIMED]
    assert rows("| generate |") == as_rows([generation["weights_digest"], *own])
    shared = [key for key, rule in training.items() if rule.phase < Phase.TIMED]
    shared.remove("weights_digest")  # most trainings start from none
    assert [training[key] for key in shared] == [generation[key] for key in shared]
    rule = make_hyperparameter_rule("opt_name")
    assert hyperparameters[0] == rule.phase.name.lower()
    assert hyperparameters[2:4] == [rule.count, f"`{rule.event_type}`"]


def test_the_rule_book_tells_every_field_of_metadata_and_of_the_implementation() -> None:
    types = {field.strip("`"): type_name for field, type_name, _ in rows("| field |")}
    assert types.pop("file`, `lineno") == "string, integer"
    asked = {CLOCK_METADATA: "number", REASON_METADATA: "string", INTERRUPTED_METADATA: "true"}
    assert types == {**METADATA_TYPES, **IMPLEMENTATION_TYPES, **asked}
    meanings = {field.strip("`"): meaning for field, _, meaning in rows("| field |")}
    for name in set(CHOICES) & set(METADATA_TYPES):
        assert all(f"`{choice}`" in meanings[name] for choice in CHOICES[name])


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.key)
def test_an_event_is_described(rule: EventRule) -> None:
    assert find_event_type(rule.key) == rule.event_type
    assert rule.key == rule.key.lower()
    assert rule.meaning
    assert set(rule.metadata) <= set(METADATA_TYPES)
    assert CLOCK_METADATA not in rule.metadata
    is_interval = rule.key.endswith(("_start", "_stop"))
    assert is_interval == (rule.event_type != "POINT_IN_TIME")


def test_choices_are_of_known_events_or_metadata() -> None:
    assert set(CHOICES) <= {rule.key for rule in ALL} | set(METADATA_TYPES)


def test_each_phase_has_events() -> None:
    for known in EVENTS.values():
        assert {rule.phase for rule in known.values()} >= set(Phase) - {Phase.AFTER}


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
