"""The house: imports point one way, and checking a log loads nothing that it does not need."""

import ast
import configparser
import json
import subprocess
import sys
from pathlib import Path

import pytest

from cepheid.rules.definition import ROOT
from tests.compliance.builder import write_result

MAY_IMPORT = {
    "rules": {"rules"},
    "reference": {"rules", "reference"},
    "benchmarks": {"rules", "reference", "benchmarks"},
    "compliance": {"rules", "compliance"},
    "tools": {"rules", "reference", "benchmarks", "compliance", "tools"},
}
HEAVY = (
    "torch", "tensorflow", "keras", "galsim", "pandas", "numpy", "scipy", "matplotlib", "rich",
    "jinja2", "mlperf_logging",
)  # fmt: skip
FRAMEWORKS = {"torch", "tensorflow", "keras", "galsim", "pandas", "mlperf_logging"}


def _files(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def _find_imports(path: Path) -> set[str]:
    """The top-level names of every import of a file, also of those within functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative imports hide the direction"
            names.add((node.module or "").split(".")[0])
    return names


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_point_one_way(package: str) -> None:
    for path in _files(package):
        ours = _find_imports(path) & set(MAY_IMPORT)
        wrong = ours - MAY_IMPORT[package]
        assert not wrong, f"{path.relative_to(ROOT)}: {package} must not import {sorted(wrong)}"


def test_every_package_is_installed() -> None:
    """``setup.cfg`` lists the packages one by one, so that an installation could lack a new one."""
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    listed = set(settings["options"]["packages"].split())
    folders = {path.parent for package in MAY_IMPORT for path in _files(package)}
    found = {".".join(folder.relative_to(ROOT).parts) for folder in folders}
    assert {name for name in found if not name.startswith("benchmarks")} == listed


@pytest.mark.parametrize("package", ["rules", "compliance"])
def test_rules_and_checks_know_no_framework(package: str) -> None:
    for path in _files(package):
        wrong = _find_imports(path) & FRAMEWORKS
        assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


@pytest.mark.parametrize("package", ["rules", "compliance", "tools"])
def test_nothing_evaluates_what_it_reads(package: str) -> None:
    for path in _files(package):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = node.func if isinstance(node, ast.Call) else None
            name = called.id if isinstance(called, ast.Name) else getattr(called, "attr", "")
            is_bare = isinstance(called, ast.Name)
            assert not (is_bare and name in ("eval", "exec")), f"{path}: {name}()"
        assert not _find_imports(path) & {"pickle", "marshal", "shelve"}, path


def _find_loaded(code: str) -> set[str]:
    """The modules that are loaded after ``code`` ran in a fresh interpreter."""
    program = f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def _modules(package: str) -> list[str]:
    names = [path.relative_to(ROOT).with_suffix("") for path in _files(package)]
    return [".".join(name.parts).removesuffix(".__init__") for name in names]


def test_importing_every_module_loads_nothing_heavy() -> None:
    """Scores, plots and pages import what they need where they need it."""
    everything = ", ".join(_modules("rules") + _modules("compliance"))
    assert not _find_loaded(f"import {everything}") & set(HEAVY)


@pytest.mark.parametrize(
    "options", [(), ("--format", "sarif"), ("--format", "github"), ("--follow",)]
)
def test_checking_loads_nothing_heavy(options: tuple[str, ...], tmp_path: Path) -> None:
    from cepheid.rules import definition

    name = "galaxy_bnn"  # its budget has that many blocks
    slow = 8  # blocks: with fewer, T21 finds that the reference needs more
    folder = write_result(tmp_path, definition.load(name, "mini"), blocks=lambda _: slow)
    for path in (tmp_path, folder / "result_0.txt"):
        if path.is_dir() and "--follow" in options:
            continue
        call = f"check_compliance.main({[str(path), *options]!r})"
        code = f"from cepheid.tools import check_compliance\nassert {call} == 0\nprint()"
        loaded = _find_loaded(code)
        assert not loaded & set(HEAVY)
        assert not loaded & {"multiprocessing", "concurrent", "reference", "benchmarks"}
