"""The rules as people read them: the books, rules/*.md, and the codes, rules/findings/*.yaml."""

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cepheid.compliance.finding import MORE, Finding
from cepheid.rules.errors import UserError, did_you_mean
from cepheid.rules.findings import Code, load_codes
from cepheid.rules.host import ROOT
from cepheid.rules.layout import fill, wrap

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

    @property
    def codes(self) -> Mapping[str, Code]:
        """The codes of the rule's findings by their names."""
        return list_codes(self.id)

    @property
    def why(self) -> str:
        """The reason for the rule, on one line."""
        reason = re.search(r"\*Why:\* (.+?)(?=\n\*|\n\n|\Z)", self.body, re.DOTALL)
        return " ".join(reason[1].split()) if reason else ""


def explain(asked: str) -> str:
    """Return the text of a rule such as ``T8``, or of one code of a finding such as ``T8.late``.

    Raises UserError for an unknown rule or code.
    """
    rules = read_rules()
    wanted_id, _, word = asked.partition(".")
    wanted_id = wanted_id.upper()
    if wanted_id not in rules:
        raise UserError(
            f'no rule "{asked}"{did_you_mean(wanted_id, rules)} '
            f"(all: {', '.join(rules)}; they are written in rules/)"
        )
    rule = rules[wanted_id]
    if not word or word == MORE:
        return fill(f"{rule.id} {rule.title}\n{rule.body}\n\n(rules/{rule.book})")
    codes = list_codes(rule.id)
    name = f"{rule.id}.{word.lower()}"
    if name not in codes:
        raise UserError(
            f'{rule.id} has no finding "{asked}"{did_you_mean(name, codes)} '
            f"(all: {', '.join(codes) or 'none, people check this rule'})"
        )
    return _explain_code(codes[name], rule)


def _explain_code(code: Code, rule: RuleText) -> str:
    """Return what a code means, an example of it, and why the rule exists."""
    severities = dict.fromkeys(form.severity for form in (code, *code.cases.values()))
    parts = [f"{code.name} ({' or '.join(severities)}): {code.means}.", *_format_examples(code)]
    parts.append(f"Why: {code.why or rule.why}")
    parts.append(f"{rule.id} {rule.title}: `cepheid check --explain {rule.id}` prints the rule.")
    return wrap("\n\n".join(parts))


def _format_examples(code: Code) -> Iterator[str]:
    """Yield the finding with the facts of its example, and what differs in each other case."""
    first: list[str] = []
    for form in (code, *code.cases.values()):
        message, expected, got, fix = form.fill(code.example)
        finding = Finding(code.name, form.severity, Path(), None, message, expected, got, fix)
        lines = [line for line in (finding.headline, *finding.details()) if line not in first]
        if lines:
            yield ("" if not first else "or\n") + textwrap.indent("\n".join(lines), "    ")
        first = first or lines


def list_codes(rule_id: str) -> dict[str, Code]:
    """Return the codes of a rule's findings by their names, in the order of the data."""
    return {name: code for name, code in load_codes().items() if code.rule == rule_id}


@cache
def read_rules() -> Mapping[str, RuleText]:
    """Return every numbered rule by its id, in the order of the books."""
    rules = {}
    others = sorted(path.name for path in FOLDER.glob("*.md") if path.name not in _FIRST)
    for book in (FOLDER / name for name in (*_FIRST, *others)):
        for section in re.split(r"^(?=##)", book.read_text(encoding="utf-8"), flags=re.MULTILINE):
            heading = re.match(r"### ([A-Z]+[0-9]+) (.+)\n", section)
            if heading:
                rule_id, title = heading.groups()
                body = section[heading.end() :].strip() + _format_codes(rule_id)
                rules[rule_id] = RuleText(rule_id, title.strip(), book.name, body)
    return rules


def _format_codes(rule_id: str) -> str:
    """Return the Markdown list of a rule's codes, which the books leave to the data."""
    items = (f"- `{code.name}`: {code.means}" for code in list_codes(rule_id).values())
    wrapped = "\n".join(textwrap.fill(item, 100, subsequent_indent="  ") for item in items)
    return f"\n*Codes:*\n\n{wrapped}" if wrapped else ""
