"""The submissions of this repository: without errors, and one of them without our code."""

import ast
import sys
from pathlib import Path

import pytest

from cepheid.compliance.judge.judgement import judge
from cepheid.compliance.read import package
from cepheid.rules import digests, rounds
from cepheid.rules.host import ROOT

SUBMISSIONS = ROOT / "submissions"
PLAIN = SUBMISSIONS / "plain_tensorflow" / "benchmarks" / "galaxy_shape"
NEEDED = {"numpy", "tensorflow"}


@pytest.mark.parametrize(
    "folder",
    [path for path in sorted(SUBMISSIONS.iterdir()) if path.is_dir()],
    ids=lambda p: p.name,
)
def test_a_submission_has_no_error(folder: Path) -> None:
    found = judge([package.read(folder)], rounds.load()).findings
    assert [finding.text() for finding in found if finding.is_error] == []


def find_imports(path: Path) -> set[str]:
    """The packages that a file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def test_a_submission_needs_none_of_our_code() -> None:
    files = {path.stem: path for path in PLAIN.glob("*.py")}
    others = set().union(*map(find_imports, files.values())) - files.keys()
    assert others - sys.stdlib_module_names == NEEDED
    assert find_imports(files["run_log"]) <= sys.stdlib_module_names


def test_its_digest_and_seeds_are_those_of_the_rules() -> None:
    """It computes them by itself, after the words of S4 and T15."""
    functions = {
        node.name: node
        for node in ast.parse((PLAIN / "train.py").read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef)
    }
    body = [functions["derived_seed"], functions["digest_of_code"]]
    theirs: dict[str, object] = {"NONCE": "n", "SUBMITTER": "me", "Path": Path}
    code = "import hashlib, json\n" + "\n".join(map(ast.unparse, body))
    exec(compile(code, "train.py", "exec"), theirs)
    digest = theirs["digest_of_code"](PLAIN)  # type: ignore[operator]
    assert digest == digests.digest_code(digests.digest_files(PLAIN))
    seed = digests.derive_seed("n", "me", "box", "galaxy_shape-mini", 3)
    assert theirs["derived_seed"]("box", 3) == seed  # type: ignore[operator]
