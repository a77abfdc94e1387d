"""Codes of findings: each has one place in the source, one in the data, and a test.

The data are valid, and their templates reach nothing but facts.
"""

import ast
import re
import string
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TypeGuard, get_args

import pytest
import yaml

from cepheid.compliance.report.rulebook import explain, read_rules
from cepheid.rules.documents import find_schema_problem
from cepheid.rules.findings import FOLDER, Code, load_codes, parse_codes
from cepheid.rules.rounds import ProblemKind

ROOT = Path(__file__).resolve().parents[2]
NOT_TESTS = ("test_codes.py", "test_formats.py")  # they check no log
FILES = sorted(FOLDER.glob("*.yaml"))
OF_RECORD = {"key", "value"}
CODE = re.compile(r"[A-Z]+[0-9]+\.[a-z0-9_]+")


def strings(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def list_facts(code: Code) -> frozenset[str]:
    """List the names of all facts that the texts of a code need, in any case."""
    forms = (code, *code.cases.values())
    texts = (text for form in forms for text in (form.message, form.expected, form.got, form.fix))
    parsed = chain.from_iterable(map(string.Formatter().parse, texts))
    return frozenset(name for _, name, _, _ in parsed if name is not None)


def codes_in(folder: Path) -> Counter[str]:
    """Count the codes among the string constants of the Python files in a folder."""
    files = (path for path in sorted(folder.rglob("*.py")) if path != Path(__file__))
    found = (text for path in files for text in strings(path) if CODE.fullmatch(text))
    return Counter(found)


@dataclass(frozen=True)
class Call:
    """A call of ``breach``: where it is, and the codes, cases and facts that it can give.

    A record that is given brings the facts ``OF_RECORD`` along.
    """

    place: str
    codes: frozenset[str]
    cases: frozenset[str]
    facts: frozenset[str]


@cache
def list_calls() -> Sequence[Call]:
    return tuple(_find_calls())


def _find_calls() -> Iterator[Call]:
    for path in sorted((ROOT / "compliance").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = [node for node in ast.walk(tree) if is_breach(node)]
        literal = {code for call in calls for code in codes_of(call.args[2])}
        # A code that is chosen from a table of its module is none that another call names.
        chosen = {text for text in strings(path) if CODE.fullmatch(text)} - literal
        for call in calls:
            keywords = {each.arg: each.value for each in call.keywords if each.arg}
            yield Call(
                f"{path.relative_to(ROOT)}:{call.lineno}",
                frozenset(codes_of(call.args[2]) or chosen),
                frozenset(cases_of(keywords.pop("case", None), tree)),
                frozenset(keywords),
            )


def is_breach(node: ast.AST) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "breach"


def codes_of(argument: ast.expr) -> set[str]:
    """Return the codes that an argument names; none where it is a variable."""
    if isinstance(argument, ast.JoinedStr):
        assert ast.unparse(argument) == "f'T1.{problem.kind}'"
        return {f"T1.{kind}" for kind in get_args(ProblemKind)}
    return {text for text in constants_in(argument) if CODE.fullmatch(text)}


def cases_of(argument: ast.expr | None, tree: ast.AST) -> set[str]:
    """Return the cases that an argument names, or that its variable is given."""
    if argument is None:
        return set()
    if isinstance(argument, ast.Name):
        assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
        values = [node.value for node in assigned if ast.unparse(node.targets[0]) == argument.id]
        return {text for value in values for text in constants_in(value)}
    if ast.unparse(argument) == "problem.case":  # T1's, from the tables of what damages a log
        found = {case for key, code in load_codes().items() if "T1." in key for case in code.cases}
        return found & set(strings(ROOT / "compliance" / "read" / "log" / "damage.py"))
    assert isinstance(argument, ast.IfExp)
    return {*constants_in(argument.body), *constants_in(argument.orelse)}


def constants_in(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value:
            yield part.value


def test_every_call_gives_the_facts_that_the_texts_of_its_code_need() -> None:
    codes = load_codes()
    for call in list_calls():
        assert call.codes, f"{call.place}: the code of this call cannot be found"
        needed = frozenset[str]().union(*(list_facts(codes[code]) for code in call.codes))
        is_complete = call.facts <= needed <= call.facts | OF_RECORD
        assert is_complete, f"{call.place}: the facts and the places differ"
        known = frozenset[str]().union(*(codes[code].cases for code in call.codes))
        assert call.cases <= known, call.place


def test_every_code_and_every_case_is_given_by_a_call() -> None:
    given = {
        (code, case) for call in list_calls() for code in call.codes for case in (*call.cases, "")
    }
    codes = load_codes().values()
    given -= {
        (code, case)
        for code, case in given
        if code.startswith("T1.") and case and case not in load_codes()[code].cases
    }
    assert given == {(code.name, case) for code in codes for case in (*code.cases, "")}


def test_codes_are_explained_and_cases_differ() -> None:
    for name, code in load_codes().items():
        assert code.example.keys() == list_facts(code), name
        text = explain(name)
        assert code.means in text
        assert next(code.fill(code.example)) in text
    for name, code in load_codes().items():
        assert all(form != code for form in code.cases.values()), name
        assert code.why != code.means, name


def source_codes() -> Counter[str]:
    """Count where the checks give each code; those of T1 follow from the kinds of problems."""
    of_problems = Counter(f"T1.{kind}" for kind in get_args(ProblemKind))
    return codes_in(ROOT / "compliance") + of_problems


def test_codes_have_one_place_and_belong_to_a_rule() -> None:
    given = codes_in(ROOT / "compliance")
    assert [code for code, count in given.items() if count > 1] == []
    assert load_codes().keys() == source_codes().keys()
    assert {code.rule for code in load_codes().values()} <= read_rules().keys()
    for book in (ROOT / "rules").glob("*.md"):
        text = book.read_text(encoding="utf-8")
        assert not re.findall(r"^- `[A-Z]+[0-9]+\.[a-z0-9_]+`: ", text, re.MULTILINE), book.name


def test_every_code_is_expected_by_a_test() -> None:
    files = (path for path in (ROOT / "tests").rglob("test_*.py") if path.name not in NOT_TESTS)
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    tested = set(CODE.findall(text))
    assert sorted(code for code in source_codes() if code not in tested) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_file_follows_the_schema_and_names_a_code_once(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert find_schema_problem(yaml.safe_load(text), "findings") is None
    names = re.findall(r"^(\S+):$", text, re.MULTILINE)
    assert len(names) == len(set(names)) == len(list(parse_codes(text)))


@pytest.mark.parametrize(
    "message",
    [
        "{run.path}", "{run[0]}", "{run.__class__}", "{0}", "{}", "{run!r}", "{run:{width}}",
        "{samples:>1000000}", "{samples:.99999f}", "{ samples}",
    ],
)  # fmt: skip
def test_a_template_that_reaches_into_a_fact_is_refused(message: str) -> None:
    entry = {"means": "too late", "message": f"x {message}"}
    assert "T8.late.message" in str(find_schema_problem({"T8.late": entry}, "findings"))
    of_case = {"means": "too late", "message": "xyz", "cases": {"late": {"fix": message}}}
    assert "late.fix" in str(find_schema_problem({"T8.late": of_case}, "findings"))


def test_data_make_no_objects_and_facts_are_no_templates() -> None:
    with pytest.raises(yaml.YAMLError):
        list(parse_codes("T8.late: !!python/object/apply:os.getcwd []"))
    (code,) = parse_codes('T8.late: {means: x, message: "{name} {{}}"}')
    assert next(code.fill({"name": "{name.__class__} {0}"})) == "{name.__class__} {0} {}"
