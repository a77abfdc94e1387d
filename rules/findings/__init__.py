"""Codes of findings: severity and texts of everything that a check can report, ``findings/*.yaml``.

Each code stands there once, under the name of its rule. Checks name a code and give facts; the
texts are templates with named places for them. All that shows a code reads this data: messages,
``cepheid check --explain``, SARIF and the rules on the site.
"""

import re
import string
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from cepheid.rules.rounds import Severity

FOLDER = Path(__file__).parent
TEXTS = ("message", "expected", "got", "fix")
"""The texts of a finding that are templates."""

_ENTRY = re.compile(r"^[^\s#].*\n(?:[ #].*\n|\n)*", re.MULTILINE)
_FACT = re.compile(r"[a-z][a-z_]*")
_FORMAT = re.compile(r",?(\.[0-9])?[fg%]?")


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

    @property
    def facts(self) -> frozenset[str]:
        """The names of all facts that the texts need, in any case."""
        forms = (self, *self.cases.values())
        texts = (getattr(form, text) for form in forms for text in TEXTS)
        return frozenset(fact for text in texts for fact in _list_facts(text))

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
    (code,) = parse_codes(*_split_files()[name])
    return code.cases[case] if case else code


@cache
def load_codes() -> Mapping[str, Code]:
    """Return every code by its name, in the order of the files. Raises ValueError for bad data."""
    return {name: find_code(name) for name in _split_files()}


@cache
def _split_files() -> Mapping[str, tuple[str, str]]:
    """Return the text of each code's entry, and the name of its file, by the name of the code."""
    entries: dict[str, tuple[str, str]] = {}
    for path in sorted(FOLDER.glob("*.yaml")):
        for entry in _ENTRY.findall(path.read_text(encoding="utf-8")):
            name = entry.partition(":")[0]
            if name in entries:
                raise ValueError(f"{path.name}: {name} is there twice; remove one of them")
            entries[name] = entry, path.name
    return entries


def parse_codes(text: str, file: str) -> Iterator[Code]:
    """Parse one file of codes. Raises ValueError for an unknown key or an unsafe template."""
    # libyaml reads the files in a tenth of the time; both loaders are safe.
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    known = {each.name for each in fields(Code)} - {"name"}
    for name, entry in yaml.load(text, loader).items():
        unknown = entry.keys() - known
        if unknown:
            raise ValueError(f"{file}: {name} has the unknown key {min(unknown)}")
        cases = entry.pop("cases", {})
        code = Code(name, **entry)
        forms = {case: replace(code, **changes) for case, changes in cases.items()}
        for form in (code, *forms.values()):
            for key in TEXTS:
                _check_template(getattr(form, key), f"{file}: {name}.{key}")
        yield replace(code, cases=forms)


def _list_facts(template: str) -> Iterator[str]:
    return (name for _, name, _, _ in string.Formatter().parse(template) if name is not None)


def _check_template(template: str, where: str) -> None:
    """Refuse everything but plain names and simple formats of numbers.

    So a template reaches no attribute and no item of a fact, and calls nothing.
    """
    for _, name, form, conversion in string.Formatter().parse(template):
        if name is None:
            continue
        if not _FACT.fullmatch(name):
            raise ValueError(f'{where}: "{name}" is not the plain name of a fact, such as samples')
        if conversion or not _FORMAT.fullmatch(form or ""):
            raise ValueError(f"{where}: {name} may only have the format of a number, such as :,")
