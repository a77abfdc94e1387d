"""Codes of findings: severity and texts of everything that a check can report, ``findings/*.yaml``.

Each code stands there once, under the name of its rule. Checks name a code and give facts; the
texts are templates with named places for them. All that shows a code reads this data: messages,
``cepheid check --explain``, SARIF and the rules on the site.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from cepheid.rules.documents import parse_yaml
from cepheid.rules.rounds import Severity

FOLDER = Path(__file__).parent
_ENTRY = re.compile(r"^[^\s#].*\n(?:[ #].*\n|\n)*", re.MULTILINE)


@dataclass(frozen=True)
class Code:
    """One kind of breach of a rule.

    ``means`` says in one clause what is wrong, ``why`` why that matters where the rule's own reason
    does not say it. ``example`` holds facts for the places of the texts. ``cases`` are forms of the
    code that differ in some texts or in severity.
    """

    name: str
    means: str
    message: str
    expected: str = ""
    got: str = ""
    fix: str = ""
    severity: Severity = "error"
    why: str = ""
    example: Mapping[str, object] = field(default_factory=dict)
    cases: Mapping[str, "Code"] = field(default_factory=dict)

    @property
    def rule(self) -> str:
        """The id of the rule, for example ``T8``."""
        return self.name.partition(".")[0]

    def fill(self, facts: Mapping[str, object]) -> Iterator[str]:
        """Yield message, expectation, what was found and fix, with the facts in their places.

        Facts are never templates: braces in them are text. Raises KeyError for a missing fact.
        """
        for text in (self.message, self.expected, self.got, self.fix):
            yield text.format_map(facts)


@cache
def find_code(name: str, case: str = "") -> Code:
    """Return a code, or one of its cases; raise KeyError for one that is not in the data.

    Only its own entry is parsed: parsing all of them takes longer than judging twenty logs.
    """
    (code,) = parse_codes(_split_files()[name])
    return code.cases[case] if case else code


@cache
def load_codes() -> Mapping[str, Code]:
    """Return every code by its name, in the order of the files. Raises ValueError for bad data."""
    return {name: find_code(name) for name in _split_files()}


@cache
def _split_files() -> Mapping[str, str]:
    """Return the text of each code's entry, by the name of the code."""
    entries: dict[str, str] = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        for entry in _ENTRY.findall(path.read_text(encoding="utf-8")):
            name = entry.partition(":")[0]
            if name in entries:
                raise ValueError(f"{path.name}: {name} is there twice; remove one of them")
            entries[name] = entry
    return entries


def parse_codes(text: str) -> Iterator[Code]:
    """Parse codes. A test compares all files with ``schemas/findings.schema.json``.

    It refuses every template but those with plain names and simple formats of numbers, so that one
    reaches no attribute and no item of a fact, and calls nothing.
    """
    for name, entry in parse_yaml(text).items():
        cases = entry.pop("cases", {})
        code = Code(name, **entry)
        yield replace(code, cases={case: replace(code, **cases[case]) for case in cases})
