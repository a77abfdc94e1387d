"""Extras: definitions name what their benchmarks import, documents what definitions name."""

import ast
import configparser
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from cepheid.rules import definition, extras
from cepheid.rules.host import ROOT
from tests.checkout import ROOMS


def find_modules(folder: Path) -> set[str]:
    found: set[str] = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def find_packages(folders: set[Path]) -> set[str]:
    """The packages that the modules of folders import, and of the datasets that they use."""
    seen: set[Path] = set()
    modules: set[str] = set()
    while waiting := folders - seen:
        folder = waiting.pop()
        seen.add(folder)
        modules |= (found := find_modules(folder))
        names = {
            module.split(".")[3] for module in found if module.startswith("cepheid.reference.data.")
        }
        folders |= {path for name in names if (path := ROOT / "reference/data" / name).is_dir()}
    return {module.partition(".")[0] for module in modules}


@pytest.mark.parametrize("name", definition.names())
def test_a_definition_names_the_extras_that_it_imports_and_commands_list_them(name: str) -> None:
    chosen = definition.load(name, "mini")
    scales = [definition.load(name, scale) for scale in definition.scales(name)]
    folders = {ROOT / "reference/data" / each.data["generator"] for each in scales}
    packages = find_packages({ROOT / "benchmarks" / name, *folders})
    needed = {extras.EXTRA_OF[package] for package in packages & set(extras.EXTRA_OF)}
    assert needed - {"torch", "keras", "score", extras.SITE} == set(chosen.extras)
    for framework in ("torch", "keras"):
        brought = find_brought(extras.list_extras(chosen.extras, framework))
        other = {"torch": "keras", "keras": "torch"}[framework]
        missing = (packages & set(extras.EXTRA_OF)) - brought - find_brought([other])
        assert not missing, f"{name} imports {missing}, which none of its extras brings"
    text = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    (row,) = re.findall(rf"^\| .*`{name}`.*$", text, re.MULTILINE)
    listed = ",".join(extras.list_extras(definition.load(name, "mini").extras))
    assert f"`{listed}`" in row


def find_brought(names: Iterable[str]) -> set[str]:
    return {package for name in names for package in extras.PACKAGES_OF[name]}


# What a measurement compares with or reads where it is installed.
PEERS = {"h5py", "kfac", "lmdb", "transformers", "webdataset"}
CORE = {"argcomplete", "jsonschema", "yaml", "msgspec", "rich", "psutil", "typing_extensions"}


def test_packages_have_an_extra_and_extras_their_packages() -> None:
    packages = {name.partition(".")[0] for room in ROOMS for name in find_modules(ROOT / room)}
    foreign = packages - sys.stdlib_module_names - {"cepheid"}
    assert foreign - CORE - PEERS == set(extras.EXTRA_OF) - {"pynvml"}  # imported by its name
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    sections = setup["options.extras_require"]
    names = {"PIL": "pillow", "pynvml": "nvidia-ml-py"}
    for extra, offered in extras.PACKAGES_OF.items():
        listed = sections[extra].replace("cepheid[score]", sections["score"]).lower()
        for package in offered:
            assert names.get(package, package).replace("_", "-").lower() in listed, extra


def test_the_tutorial_lists_the_extras_of_each_dataset() -> None:
    text = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8").replace("\n", " ")
    for name in ("resnet50", "transformer", "kfac"):
        (extra,) = definition.load(name, "mini").extras
        assert re.search(rf"`{name}`[^.]* needs? `{extra}`", text), name


def test_a_missing_package_names_the_command() -> None:
    said = extras.explain_missing("sentencepiece.something")
    assert said.startswith("sentencepiece is not installed; it comes with the extra translation: ")
    assert said.endswith("editable_mode=compat -e '.[translation]'")
    assert extras.explain_missing("x") == "x is not installed"
    said = extras.explain_missing("filelock", "galsim", "x", among=("keras", "galsim"))
    assert said.startswith("filelock, galsim and x are not installed; they come with the extras ")
    assert said.endswith("'.[keras,galsim]'")
    for page in ("docs/commands.md", "docs/tutorial.md"):
        for command in re.findall(r"pip install .*\[.*$", (ROOT / page).read_text(), re.MULTILINE):
            named = re.search(r"\[(.*)\]", command)
            assert named
            assert command.startswith(extras.format_command(named[1].split(",")))
