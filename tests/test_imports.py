"""Everything has one import name, and checking a log loads nothing that it does not need."""

import ast
import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from cepheid.rules.host import ROOT
from tests.checkout import ROOMS, run_program
from tests.compliance.builder import write_result

OLD_NAMES = {"rules", "reference", "benchmarks", "compliance", "tools"}  # before ``cepheid.``
CEPHEID = ROOT / "cepheid"
HEAVY = (
    "torch", "tensorflow", "keras", "galsim", "pandas", "numpy", "scipy", "matplotlib", "rich",
    "jinja2", "mlperf_logging",
)  # fmt: skip
FRAMEWORKS = {"torch", "tensorflow", "keras", "galsim", "pandas", "mlperf_logging"}


def _files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def _find_imports(path: Path) -> set[str]:
    """The top-level names of every import of a file, and ``cepheid.<room>`` of our own ones.

    Those within functions count.
    """
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the direction"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    parts = (name.split(".") for name in names)
    return {".".join(name[:2]) if name[0] == "cepheid" else name[0] for name in parts}


def test_no_module_is_imported_without_the_one_name_and_every_room_has_a_link() -> None:
    for path in (path for package in (*ROOMS, "tests") for path in _files(package)):
        wrong = _find_imports(path) & OLD_NAMES
        assert not wrong, f"{path.relative_to(ROOT)}: import cepheid.{sorted(wrong)[0]} instead"
    links = {path.name: os.readlink(path) for path in CEPHEID.iterdir() if path.is_symlink()}
    assert links == {room: f"../{room}" for room in ROOMS}


def test_a_checkout_without_links_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "cepheid").mkdir()
    shutil.copy(CEPHEID / "__init__.py", tmp_path / "cepheid")
    for room in ROOMS:  # what git writes where it makes no links
        (tmp_path / "cepheid" / room).write_text(f"../{room}")
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    program = [sys.executable, "tools/check_compliance.py", "results"]
    done = run_program(program, cwd=tmp_path)
    assert done.returncode == 2
    assert re.fullmatch(r"cepheid: .*no symbolic links.*core\.symlinks.*\n", done.stderr)


@pytest.mark.parametrize("package", ["rules", "compliance", "leaderboard"])
def test_rules_and_checks_know_no_framework(package: str) -> None:
    for path in _files(package):
        wrong = _find_imports(path) & FRAMEWORKS
        assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


# The rules of mlcommons, once every part of their syntax tree is on a list (test_expressions.py).
COMPILES_RULES = ROOT / "rules" / "mlperf" / "expressions.py"


@pytest.mark.parametrize("package", ["rules", "compliance", "leaderboard", "tools"])
def test_nothing_evaluates_what_it_reads(package: str) -> None:
    for path in _files(package):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = node.func if isinstance(node, ast.Call) else None
            name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
            is_bare = isinstance(called, ast.Name)
            is_allowed = path == COMPILES_RULES and name in ("eval", "exec")
            assert not (is_bare and name in ("eval", "exec")) or is_allowed, f"{path}: {name}()"
        assert not _find_imports(path) & {"pickle", "marshal", "shelve"}, path


def _find_loaded(code: str) -> set[str]:
    """The modules that are loaded after ``code`` ran in a fresh interpreter."""
    program = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = run_program([sys.executable, "-c", program], cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def _modules(package: str) -> list[str]:
    names = [path.relative_to(ROOT).with_suffix("") for path in _files(package)]
    return [".".join(("cepheid", *name.parts)).removesuffix(".__init__") for name in names]


def test_importing_every_module_loads_nothing_heavy() -> None:
    """Scores, plots and pages import what they need where they need it."""
    everything = ", ".join(_modules("rules") + _modules("compliance") + _modules("leaderboard"))
    assert not _find_loaded(f"import {everything}") & set(HEAVY)


def test_checking_loads_nothing_heavy(tmp_path: Path) -> None:
    from cepheid.rules import definition

    name = "galaxy_bnn"  # its budget has that many blocks
    slow = 11  # blocks: with fewer, T21 finds that the reference needs more
    folder = write_result(tmp_path, definition.load(name, "mini"), blocks=lambda _: slow)
    log = str(folder / "result_0.txt")
    calls = [[path, *how] for path in (str(tmp_path), log) for how in (
        [], ["--format", "sarif"], ["--format", "github"])]  # fmt: skip
    code = "from cepheid.tools import check_compliance\n"
    code += f"for call in {[*calls, [log, '--follow']]}: assert check_compliance.main(call) == 0"
    loaded = _find_loaded(f"{code}\nprint()")
    assert not loaded & set(HEAVY)
    assert not loaded & {"multiprocessing", "concurrent"}
    assert not loaded & {"cepheid.reference", "cepheid.benchmarks"}
