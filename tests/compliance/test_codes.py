"""Codes of findings: each has one place in the source, a line in a rule book, and a test."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from cepheid.compliance.report.rulebook import list_codes, read_rules
from cepheid.rules.rounds import ProblemKind

ROOT = Path(__file__).resolve().parents[2]
NOT_TESTS = ("test_codes.py", "test_finding.py", "test_annotations.py")  # they check no log
CODE = re.compile(r"[A-Z]+[0-9]+\.[a-z0-9_]+")


def strings(path: Path) -> Iterator[str]:
    """Return the string constants of a Python file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def codes_in(folder: Path) -> Counter[str]:
    """Count the codes among the string constants of the Python files in a folder."""
    files = (path for path in sorted(folder.rglob("*.py")) if path != Path(__file__))
    found = (text for path in files for text in strings(path) if CODE.fullmatch(text))
    return Counter(found)


def source_codes() -> Counter[str]:
    """Count where the checks give each code; those of T1 follow from the kinds of problems."""
    of_problems = Counter(f"T1.{kind}" for kind in get_args(ProblemKind))
    return codes_in(ROOT / "compliance") + of_problems


def test_every_code_is_given_in_one_place() -> None:
    given = codes_in(ROOT / "compliance")
    assert [code for code, count in given.items() if count > 1] == []


def test_every_code_is_documented_and_nothing_else() -> None:
    documented = {code for rule in read_rules() for code in list_codes(rule)}
    assert documented == set(source_codes())


def test_the_codes_of_a_rule_stand_under_it() -> None:
    for rule in read_rules():
        assert {code.partition(".")[0] for code in list_codes(rule)} <= {rule}
        assert all(text and text[-1] != "." for text in list_codes(rule).values())


def test_every_code_is_expected_by_a_test() -> None:
    files = (path for path in (ROOT / "tests").rglob("test_*.py") if path.name not in NOT_TESTS)
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    tested = set(CODE.findall(text))
    assert sorted(code for code in source_codes() if code not in tested) == []
