"""Read the files of the house: each module is parsed once, and none is imported."""

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

Plan = Mapping[str, Any]
"""The contents of ``house.toml``, which describes every field."""
ELSEWHERE = "elsewhere"  # the room of what lies in none: documents, continuous integration
PLACEHOLDER = re.compile(r"\{[^{}]*\}|%s|%\(\w+\)s")
DOTTED = re.compile(r"[\w*]+(?:\.[\w*]+)+")


@dataclass(frozen=True)
class Reference:
    """A dotted name that a module imports; ``*`` stands for a part that is known when it runs."""

    line: int
    name: str
    is_string: bool = False


@dataclass(frozen=True)
class Class:
    """A class and the names of its bases as they are written."""

    name: str
    line: int
    bases: tuple[str, ...]


@dataclass(frozen=True)
class Function:
    """A function and the number of its parameters, without ``self`` and ``cls``."""

    name: str
    line: int
    parameters: int


@dataclass(frozen=True)
class Module:
    """What one module of a room says; ``bindings`` are its imports by the name they get here."""

    path: str
    name: str
    lines: int
    references: tuple[Reference, ...]
    bindings: Mapping[str, str]
    classes: tuple[Class, ...]
    functions: tuple[Function, ...]

    @property
    def room(self) -> str:
        """Return the folder at the top."""
        return self.path.split("/")[0]

    @property
    def is_package(self) -> bool:
        """Return whether the module is the ``__init__.py`` of its folder."""
        return self.path.endswith("/__init__.py")


@dataclass(frozen=True)
class House:
    """All files that count: modules by their dotted name, and lines by room, kind and path."""

    root: Path
    plan: Plan
    modules: Mapping[str, Module]
    lines: Mapping[tuple[str, str], Mapping[str, int]]


def read_house(root: Path, text: str) -> House:
    """Read and parse all files under ``root``, by the plan ``text``.

    Raises SyntaxError where a module is not Python.
    """
    plan = tomllib.loads(text)
    modules: dict[str, Module] = {}
    lines: dict[tuple[str, str], dict[str, int]] = {}
    for path in list_files(root, plan):
        kinds = (
            kind for kind, names in plan["kinds"].items() if any(fnmatch(path, n) for n in names)
        )
        if (kind := next(kinds, None)) is None:
            continue
        content = (root / path).read_text(encoding="utf-8")
        top = path.split("/")[0]
        room = top if top in plan["rooms"] and "/" in path else ELSEWHERE
        lines.setdefault((room, kind), {})[path] = content.count("\n")
        if room != ELSEWHERE and path.endswith(".py"):
            module = parse_module(path, content, plan)
            modules[module.name] = module
    return House(root, plan, modules, lines)


def list_files(root: Path, plan: Plan) -> list[str]:
    """Return the paths of our files, relative to ``root``.

    These are the files that git tracks, and new ones within rooms unless git ignores them. Without
    git, they are all files. Symbolic links are never followed.
    """
    if (root / ".git").exists():
        command = ["git", "ls-files", "-z", "-t", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
        tagged = [entry.split(" ", 1) for entry in listed.stdout.split("\0") if entry]
        paths = [path for tag, path in tagged if tag != "?" or path.split("/")[0] in plan["rooms"]]
    else:
        paths = [path.relative_to(root).as_posix() for path in root.rglob("*")]
    return sorted(
        path
        for path in paths
        if not path.startswith(tuple(f"{place}/" for place in plan["not_ours"]))
        and (root / path).is_file()
        and not (root / path).is_symlink()
    )


def parse_module(path: str, text: str, plan: Plan) -> Module:
    """Return what the module at ``path`` says. Raises SyntaxError where it is not Python."""
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package = name if path.endswith("/__init__.py") else name.rpartition(".")[0]
    nodes = list(ast.walk(ast.parse(text, filename=path)))
    imports = [found for node in nodes for found in _list_imports(node, package)]
    references = [Reference(line, name) for line, name, _ in imports]
    rooms = "|".join(re.escape(room) for room in plan["rooms"])
    if re.search(rf"[\"'.}}](?:{rooms})\.", text):
        references += _find_strings(nodes, rf"(?:[\w*]+\.)?(?:{rooms})\.")
    return Module(
        path=path,
        name=name,
        lines=text.count("\n"),
        references=tuple(references),
        bindings={
            bound or name.split(".")[0]: name if bound else name.split(".")[0]
            for _, name, bound in imports
        },
        classes=tuple(
            Class(node.name, node.lineno, _list_bases(node))
            for node in nodes
            if isinstance(node, ast.ClassDef)
        ),
        functions=tuple(
            Function(node.name, node.lineno, _count_parameters(node.args))
            for node in nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ),
    )


def _list_imports(node: ast.AST, package: str) -> Iterator[tuple[int, str, str]]:
    """Yield line, dotted name and the name here of what a statement imports.

    The name here is "" for ``import a.b``, which binds its first part.
    """
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield node.lineno, alias.name, alias.asname or ""
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            above = package.split(".")
            base = ".".join([*above[: len(above) - node.level + 1], *filter(None, [base])])
        for alias in node.names:
            name = base if alias.name == "*" else f"{base}.{alias.name}"
            yield node.lineno, name, alias.asname or alias.name


def _list_bases(node: ast.ClassDef) -> tuple[str, ...]:
    bases = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return tuple(ast.unparse(base) for base in bases)


def _count_parameters(given: ast.arguments) -> int:
    stars = [star for star in (given.vararg, given.kwarg) if star]
    names = [each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs, *stars)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def _find_strings(nodes: list[ast.AST], begin: str) -> Iterator[Reference]:
    """Yield the strings that look like a dotted name in a room, f-strings and templates too."""
    within = {
        id(part)
        for node in nodes
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if isinstance(part, ast.Constant)
    }
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in within:
                continue
            text = PLACEHOLDER.sub("*", node.value)
        else:
            continue
        name = f"{text}*" if text.endswith(".") else text
        if re.match(begin, name) and DOTTED.fullmatch(name):
            yield Reference(node.lineno, name, is_string=True)
