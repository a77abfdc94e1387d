"""The rule books, rules/*.md: the text of each numbered rule."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cepheid.rules.errors import UserError, did_you_mean
from cepheid.rules.installation import ROOT

FOLDER = ROOT / "rules"
_FIRST = ("training.md", "submission.md")  # in this order; other books follow by name


@dataclass(frozen=True)
class RuleText:
    """A numbered rule as its book has it, in Markdown: ``### T1 Form`` and what follows."""

    id: str
    title: str
    book: str
    body: str

    @property
    def first_sentence(self) -> str:
        """The first sentence after the mark that says how the rule is checked."""
        plain = re.sub(r"\A\*[^*]+\*\s+", "", self.body)
        sentence = re.match(r".+?[.:](?=\s|\Z)", plain, re.DOTALL)
        return " ".join((sentence.group() if sentence else plain).split())


def explain_rule(rule_id: str) -> str:
    """Return a rule's text: what it says, why, how it is checked, how to comply, its codes.

    ``rule_id`` may also be the code of a finding, such as ``T8.late``. Raises UserError for an
    unknown rule.
    """
    rules = read_rules()
    wanted_id = rule_id.partition(".")[0].upper()
    if wanted_id not in rules:
        raise UserError(
            f'no rule "{rule_id}"{did_you_mean(wanted_id, rules)} '
            f"(all: {', '.join(rules)}; they are written in rules/)"
        )
    rule = rules[wanted_id]
    return f"{rule.id} {rule.title}\n{rule.body}\n\n(rules/{rule.book})"


def list_codes(rule_id: str) -> dict[str, str]:
    """Return the codes of a rule's findings, each with what it means."""
    line = re.compile(rf"^- `({re.escape(rule_id)}\.[a-z0-9_]+)`: (.+)$", re.MULTILINE)
    return dict(line.findall(read_rules()[rule_id].body))


@cache
def read_rules() -> Mapping[str, RuleText]:
    """Return every numbered rule by its id, in the order of the books."""
    rules = {}
    for book in _find_books():
        for section in re.split(r"^(?=##)", book.read_text(encoding="utf-8"), flags=re.MULTILINE):
            heading = re.match(r"### ([A-Z]+[0-9]+) (.+)\n", section)
            if heading:
                rule_id, title = heading.groups()
                body = section[heading.end() :].strip()
                rules[rule_id] = RuleText(rule_id, title.strip(), book.name, body)
    return rules


def _find_books() -> list[Path]:
    others = sorted(path.name for path in FOLDER.glob("*.md") if path.name not in _FIRST)
    return [FOLDER / name for name in (*_FIRST, *others)]
