"""Rounds, rule books, checks and their tests name the same rules."""

import json
import re
from pathlib import Path

import pytest
import yaml

from cepheid.compliance.checks import CHECKS
from cepheid.rules import requirements, rounds
from cepheid.rules.documents import SCHEMAS, find_schema_problem
from cepheid.rules.errors import UserError
from cepheid.rules.installation import ROOT

BOOKS = ("training.md", "submission.md", "mlperf.md")

ROUNDS = ROOT / "rules" / "rounds"


def _rules_of_the_books() -> dict[str, str]:
    """The text of each numbered rule."""
    found = {}
    for book in BOOKS:
        text = (ROOT / "rules" / book).read_text(encoding="utf-8")
        for section in re.split(r"^(?=### )", text, flags=re.MULTILINE)[1:]:
            found[section.split()[1]] = section
    return found


def test_what_the_books_call_checked_is_in_a_round() -> None:
    checked = {rule for rule, text in _rules_of_the_books().items() if "*Checked" in text}
    assert checked == {rule for name in rounds.names() for rule in rounds.load(name).rules}


def test_our_own_round_checks_the_rules_of_its_own_books() -> None:
    checked = {rule for rule, text in _rules_of_the_books().items() if "*Checked" in text}
    ours = {rule for rule in checked if not rule.startswith("M")}
    assert set(rounds.load("v1.0").rules) == ours


def test_every_rule_says_who_looks_and_why() -> None:
    for rule, text in _rules_of_the_books().items():
        assert any(f"*{by}" in text for by in ("Checked", "Reviewed", "Computed", "Kept")), rule
        assert "*Why:*" in text, rule


def test_the_books_number_without_gaps() -> None:
    rules = list(_rules_of_the_books())
    for letter in "TSM":
        numbers = [int(rule[1:]) for rule in rules if rule[0] == letter]
        assert numbers == list(range(1, len(numbers) + 1))


def test_every_rule_of_a_round_has_a_check_and_the_reverse() -> None:
    assert set(CHECKS) == {rule for name in rounds.names() for rule in rounds.load(name).rules}


@pytest.mark.parametrize("name", rounds.names())
def test_a_round_has_the_form_of_its_schema(name: str) -> None:
    document = yaml.safe_load((ROUNDS / f"{name}.yaml").read_text(encoding="utf-8"))
    assert find_schema_problem(document, "round") is None


@pytest.mark.parametrize("path", sorted(rounds.SHARED.glob("*.yaml")), ids=lambda path: path.stem)
def test_shared_requirements_have_the_form_of_a_group(path: Path) -> None:
    group = yaml.safe_load(path.read_text(encoding="utf-8"))
    as_a_round = {"name": "x", "title": "x", "rules": {}, "requirements": [group]}
    assert find_schema_problem(as_a_round, "round") is None


def test_shared_requirements_are_shared() -> None:
    """Each is included by two rounds or more, and no round repeats what it includes."""
    documents = [
        yaml.safe_load((ROUNDS / f"{name}.yaml").read_text(encoding="utf-8"))
        for name in rounds.names()
    ]
    for path in rounds.SHARED.glob("*.yaml"):
        including = [d for d in documents if path.stem in d.get("include", ())]
        assert len(including) > 1
        for key, asked in yaml.safe_load(path.read_text(encoding="utf-8"))["keys"].items():
            for document in including:
                own = [group["keys"].get(key) for group in document["requirements"]]
                assert asked not in own


def test_integrity_rules_are_in_every_round() -> None:
    """As far as MLPerf's submissions allow: T2 is our own vocabulary, their counts are M1's, and
    they have no manifest of ours (S4)."""
    ours = {r.id for r in rounds.load("v1.0").rules.values() if r.kind == "integrity"}
    for name in rounds.names():
        found = {r.id for r in rounds.load(name).rules.values() if r.kind == "integrity"}
        assert found == ours - ({"T2", "S4"} if rounds.load(name).is_history else set())


def test_the_conditions_are_those_of_the_schema() -> None:
    schema = json.loads((SCHEMAS / "round.schema.json").read_text(encoding="utf-8"))
    assert set(schema["$defs"]["condition"]["properties"]) == set(requirements.CONDITIONS)


def test_integrity_rules_are_those_that_the_book_says() -> None:
    text = (ROOT / "rules" / "training.md").read_text(encoding="utf-8")
    said = re.search(r"Integrity rules \(T1 to T5, T15, T19\)", text)
    assert said is not None
    found = {r.id for r in rounds.load("v1.0").rules.values() if r.kind == "integrity"}
    assert found == {"T1", "T2", "T3", "T4", "T5", "T15", "T19", "S4", "S5"}


def test_the_book_says_which_rules_may_be_waived() -> None:
    said = re.search(r"\n((?:[TS][0-9]+|[, ]|to|and)+) may be waived", _rules_of_the_books()["S9"])
    assert said is not None
    words = re.findall(r"([TS])([0-9]+)(?: to [TS]([0-9]+))?", said.group(1))
    listed = {
        f"{letter}{number}"
        for letter, first, last in words
        for number in range(int(first), int(last or first) + 1)
    }
    rules = rounds.load("v1.0").rules
    assert {rule.id for rule in rules.values() if rule.waivable} == listed & set(rules)
    assert not any(rule.waivable and rule.kind == "integrity" for rule in rules.values())


def test_every_checked_rule_is_broken_by_a_test() -> None:
    """Each id begins an expected code in a test of the checks."""
    folder = ROOT / "tests" / "compliance"
    text = "".join(path.read_text(encoding="utf-8") for path in folder.rglob("test_*.py"))
    missing = [rule for rule in CHECKS if f'"{rule}.' not in text]
    assert not missing


def test_an_unknown_round_gets_a_suggestion() -> None:
    with pytest.raises(UserError, match=r'no round "v1\.1"; did you mean "v1\.0"'):
        rounds.load("v1.1")


@pytest.mark.parametrize("name", rounds.names())
def test_a_round_has_the_name_of_its_file(name: str) -> None:
    assert rounds.load(name).name == name
