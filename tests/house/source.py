"""Read the files of the house: each module is parsed once, and none is imported."""

import ast
import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from tests.house.settings import ELSEWHERE, Settings

TOP, DEFERRED, TYPES, STRING = "at the top", "inside a function", "for types only", "by string"
PLACEHOLDER = re.compile(r"\{[^{}]*\}|%s|%\(\w+\)s")
DOTTED = re.compile(r"[\w*]+(?:\.[\w*]+)+")


@dataclass(frozen=True)
class Reference:
    """A dotted name that a module imports; ``*`` stands for a part that is known when it runs."""

    line: int
    name: str
    how: str


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
    room: str
    lines: int
    references: tuple[Reference, ...]
    bindings: Mapping[str, str]
    classes: tuple[Class, ...]
    functions: tuple[Function, ...]


@dataclass(frozen=True)
class House:
    """All files that count: modules by their dotted name, and lines by room, kind and path."""

    root: Path
    settings: Settings
    modules: Mapping[str, Module]
    lines: Mapping[tuple[str, str], Mapping[str, int]]

    def find_room(self, path: str) -> str:
        """Return the room of a file, or "elsewhere"."""
        top = path.split("/")[0]
        return top if top in self.settings.rooms and "/" in path else ELSEWHERE


def list_files(root: Path, settings: Settings) -> list[str]:
    """Return the paths of our files, relative to ``root``.

    These are the files that git tracks, and new ones within rooms unless git ignores them. Without
    git, they are all files outside of virtual environments. Symbolic links are never followed.
    """
    paths = _ask_git(root, settings)
    if paths is None:
        paths = list(_walk(root, settings))
    return sorted(
        path
        for path in paths
        if path.split("/")[0] not in settings.not_ours
        and (root / path).is_file()
        and not (root / path).is_symlink()
    )


def _ask_git(root: Path, settings: Settings) -> list[str] | None:
    command = ["git", "ls-files", "-z", "-t", "--cached", "--others", "--exclude-standard"]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    if done.returncode or not (root / ".git").exists():
        return None
    tagged = [entry.split(" ", 1) for entry in done.stdout.split("\0") if entry]
    return [path for tag, path in tagged if tag != "?" or path.split("/")[0] in settings.rooms]


def _walk(root: Path, settings: Settings) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        here = Path(folder).relative_to(root)
        folders[:] = [
            name
            for name in folders
            if not (Path(folder) / name / "pyvenv.cfg").exists()
            and not (here == Path() and name in settings.not_ours)
        ]
        yield from ((here / name).as_posix() for name in files)


def read_house(root: Path, settings: Settings) -> House:
    """Read and parse all files under ``root``. Raises SyntaxError where one is not Python."""
    modules: dict[str, Module] = {}
    lines: dict[tuple[str, str], dict[str, int]] = {}
    house = House(root, settings, modules, lines)
    for path in list_files(root, settings):
        kind = _find_kind(path, settings)
        if kind is None:
            continue
        text = (root / path).read_text(encoding="utf-8")
        room = house.find_room(path)
        lines.setdefault((room, kind), {})[path] = text.count("\n")
        if room != ELSEWHERE and path.endswith(".py"):
            module = parse_module(path, text, settings)
            modules[module.name] = module
    return house


def _find_kind(path: str, settings: Settings) -> str | None:
    for kind, patterns in settings.kinds.items():
        if any(fnmatch(path, pattern) for pattern in patterns):
            return kind
    return None


def parse_module(path: str, text: str, settings: Settings) -> Module:
    """Return what the module at ``path`` says. Raises SyntaxError where it is not Python."""
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package = name if path.endswith("/__init__.py") else name.rpartition(".")[0]
    tree = ast.parse(text, filename=path)
    reader = _Reader(package)
    reader.read(tree.body, TOP, in_class=False)
    rooms = "|".join(re.escape(room) for room in settings.rooms)
    if re.search(rf"[\"'.}}](?:{rooms})\.", text):
        reader.references += _find_strings(tree, rf"(?:[\w*]+\.)?(?:{rooms})\.")
    return Module(
        path=path,
        name=name,
        room=path.split("/")[0],
        lines=text.count("\n"),
        references=tuple(reader.references),
        bindings=reader.bindings,
        classes=tuple(reader.classes),
        functions=tuple(reader.functions),
    )


class _Reader:
    """Collects what the statements of one module define and import."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.references: list[Reference] = []
        self.bindings: dict[str, str] = {}
        self.classes: list[Class] = []
        self.functions: list[Function] = []

    def read(self, body: list[ast.stmt], how: str, in_class: bool) -> None:
        """Read statements and, in turn, the blocks within them."""
        for node in body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                self._add_imports(node, how)
                continue
            inner, is_class = how, False
            if isinstance(node, ast.ClassDef):
                self.classes.append(Class(node.name, node.lineno, _list_bases(node)))
                is_class = True
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                count = _count_parameters(node, in_class)
                self.functions.append(Function(node.name, node.lineno, count))
                inner = how if how == TYPES else DEFERRED
            elif isinstance(node, ast.If):
                is_class = in_class
                inner = TYPES if "TYPE_CHECKING" in ast.dump(node.test) else how
            for field in ("body", "handlers", "cases"):
                self._read_block(getattr(node, field, []), inner, is_class)
            for field in ("orelse", "finalbody"):
                self._read_block(getattr(node, field, []), how, is_class)

    def _read_block(self, block: list[ast.AST], how: str, in_class: bool) -> None:
        for part in block:
            if isinstance(part, ast.ExceptHandler | ast.match_case):
                self.read(part.body, how, in_class)
            elif isinstance(part, ast.stmt):
                self.read([part], how, in_class)

    def _add_imports(self, node: ast.Import | ast.ImportFrom, how: str) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                self.references.append(Reference(node.lineno, alias.name, how))
                first = alias.name.split(".")[0]
                self.bindings[alias.asname or first] = alias.name if alias.asname else first
            return
        base = node.module or ""
        if node.level:
            above = self.package.split(".")
            base = ".".join([*above[: len(above) - node.level + 1], *filter(None, [base])])
        for alias in node.names:
            name = base if alias.name == "*" else f"{base}.{alias.name}"
            self.references.append(Reference(node.lineno, name, how))
            self.bindings[alias.asname or alias.name] = name


def _list_bases(node: ast.ClassDef) -> tuple[str, ...]:
    bases = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return tuple(ast.unparse(base) for base in bases)


def _count_parameters(node: ast.FunctionDef | ast.AsyncFunctionDef, in_class: bool) -> int:
    given = node.args
    count = len(given.posonlyargs) + len(given.args) + len(given.kwonlyargs)
    count += sum(star is not None for star in (given.vararg, given.kwarg))
    is_static = any(ast.unparse(name) == "staticmethod" for name in node.decorator_list)
    has_self = in_class and not is_static and bool(given.posonlyargs or given.args)
    return count - has_self


def _find_strings(tree: ast.Module, begin: str) -> Iterator[Reference]:
    """Yield the strings that look like a dotted name in a room, f-strings and templates too."""
    within = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if isinstance(part, ast.Constant)
    }
    for node in ast.walk(tree):
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
            yield Reference(node.lineno, name, STRING)
