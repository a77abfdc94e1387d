"""The rule books hold what `cepheid check --explain` promises of each rule."""

import re

import pytest

from cepheid.compliance.report.rulebook import explain_rule, read_rules
from cepheid.rules import rounds

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
    assert "\n## " not in explain_rule(rule)


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
    assert explain_rule("t8").startswith("T8 Evaluation cadence\n*Checked.*")
    assert explain_rule("T8").endswith("(rules/training.md)")
