"""The rule books hold what `cepheid check --explain` promises of each rule."""

import re

import pytest

from cepheid.compliance.report.rulebook import explain, read_rules
from cepheid.rules import rounds
from cepheid.rules.errors import UserError

RULES = read_rules()


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_says_how_it_is_checked_why_and_how_to_comply(rule: str) -> None:
    body = RULES[rule].body
    assert body.startswith(("*Checked", "*Reviewed", "*Computed by", "*Kept by")), (
        "how is it checked?"
    )
    assert body.count("*Why:* ") == 1, "why does it exist?"
    assert body.count("*To comply:* ") == 1, "how does a vendor comply?"
    assert body.index("*Why:*") < body.index("*To comply:*")
    assert "\n## " not in explain(rule)


def test_every_checked_rule_is_written_down() -> None:
    for name in rounds.names():
        assert rounds.load(name).rules.keys() <= RULES.keys()


def test_first_sentences_fit_beside_a_finding() -> None:
    for rule in RULES.values():
        sentence = rule.first_sentence
        assert 20 < len(sentence) < 400, rule.id
        assert sentence[-1] in ".:", rule.id
        assert not re.match(r"\*|Checked", sentence), rule.id


def test_a_rule_is_explained_whatever_its_case() -> None:
    assert explain("t8").startswith("T8 Evaluation cadence\n*Checked.*")
    assert explain("T8").endswith("(rules/training.md)")


def test_a_code_is_explained_by_an_example_and_a_reason() -> None:
    text = explain("t8.late")
    assert text.startswith("T8.late (error): an evaluation comes after the samples")
    assert "    T8.late evaluation at 24,000 samples is late\n" in text
    assert "\n\nWhy: a run that evaluates less often" in text
    assert "`cepheid check --explain T8`" in text


def test_the_cases_of_a_code_are_explained_too() -> None:
    text = explain("T16.too_few")
    assert text.startswith("T16.too_few (note or error): ")
    assert "or\n    T16.too_few provisional: 4 of 5 runs\n" in text


def test_the_counting_code_is_explained_by_its_rule() -> None:
    assert explain("T8.more") == explain("T8")


def test_an_unknown_code_names_those_of_its_rule() -> None:
    with pytest.raises(UserError, match=r'T8 has no finding "T8.lat"; did you mean "T8.late"'):
        explain("T8.lat")
    with pytest.raises(UserError, match="people check this rule"):
        explain("S7.late")


def test_a_rule_lists_its_codes_from_the_data() -> None:
    listed = "*Codes:*\n\n- `T7.no_time`: `run_stop` is not later than `run_start`"
    assert listed in explain("T7").replace("\n  ", " ")
