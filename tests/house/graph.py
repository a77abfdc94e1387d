"""Follow imports: from names to files, between rooms and wings, in circles, behind a task."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import yaml

from tests.house.source import Class, House, Module, Plan, Reference

FILE = "tests/house.toml"


@dataclass(frozen=True)
class Arrow:
    """One import of a module of ours; ``target`` is its dotted name or, with ``*``, a pattern."""

    source: Module
    reference: Reference
    target: str

    @property
    def place(self) -> str:
        """Return file, line and import, as messages show them."""
        by_string = " (by string)" if self.reference.is_string else ""
        return f"{self.source.path}:{self.reference.line} imports {self.target}{by_string}"


@dataclass(frozen=True)
class Graph:
    """The imports between the modules of a house."""

    house: House

    @property
    def plan(self) -> Plan:
        """Return what ``house.toml`` says."""
        return self.house.plan

    @cached_property
    def names(self) -> frozenset[str]:
        """Return the dotted names of all modules and folders with modules."""
        parts = [name.split(".") for name in self.house.modules]
        return frozenset(".".join(each[:end]) for each in parts for end in range(1, len(each) + 1))

    @cached_property
    def arrows_from(self) -> Mapping[str, tuple[Arrow, ...]]:
        """Return the imports of ours by each module of ours."""
        return {
            name: tuple(
                Arrow(module, reference, target)
                for reference in module.references
                if (target := self.resolve(reference))
            )
            for name, module in self.house.modules.items()
        }

    def strip_prefix(self, name: str) -> str:
        """Return the name as its room has it: ``cepheid.rules.x`` is ``rules.x``."""
        first, _, rest = name.partition(".")
        is_prefix = first in (self.plan["prefix"], "*") and rest.split(".")[0] in self.plan["rooms"]
        return rest if is_prefix else name

    def resolve(self, reference: Reference) -> str | None:
        """Return the module, folder or pattern that a name means, or None if it is not ours."""
        name = self.strip_prefix(reference.name)
        if name.split(".")[0] not in self.plan["rooms"]:
            return None
        if reference.is_string:
            return name if self.expand(name) else None
        while name and name not in self.names:
            name = name.rpartition(".")[0]
        return name or None

    def expand(self, target: str) -> tuple[str, ...]:
        """Return the names that there are which a target, or a pattern, may mean."""
        if "*" not in target:
            return (target,) if target in self.names else ()
        pattern = re.compile(re.escape(target).replace(r"\*", r"\w+"))
        return tuple(filter(pattern.fullmatch, sorted(self.names)))


def find_wrong_arrows(graph: Graph) -> Iterator[str]:
    """Yield a message for each import that ``[rooms]`` or ``[wings]`` does not allow."""
    for arrows in graph.arrows_from.values():
        for arrow in arrows:
            room = arrow.source.room
            allowed = graph.plan["rooms"][room]
            if not any(_lies_in(arrow.target, name) for name in (room, *allowed)):
                yield (
                    f"{arrow.place}: {room} may import {', '.join(allowed) or 'no other room'} "
                    f"([rooms] in {FILE})\n  fix: move the code to a room that may import it, or "
                    "pass what it needs as an argument"
                )
            for why in _find_wrong_wings(graph, arrow):
                yield (
                    f"{arrow.place}: {why} ([wings] in {FILE})\n  fix: move the code to a wing "
                    "further up, or correct the order of the wings"
                )


def _find_wrong_wings(graph: Graph, arrow: Arrow) -> Iterator[str]:
    for package, order in graph.plan["wings"].items():
        if not _lies_in(arrow.source.name, package):
            continue
        start = _find_wing(graph, package, arrow.source.name)
        for target in filter(lambda name: _lies_in(name, package), graph.expand(arrow.target)):
            end = _find_wing(graph, package, target)
            missing = [wing for wing in (start, end) if wing not in order]
            if missing and start != end:
                yield f'"{missing[0]}" is not in the order of the wings of {package}'
            elif start != end and order.index(end) > order.index(start):
                yield f'in {package}, "{end}" stands above "{start}"'


def _lies_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def _find_wing(graph: Graph, package: str, name: str) -> str:
    """Return the folder within a package where a module lies; "." for the package itself."""
    wing = name.removeprefix(package).removeprefix(".").split(".")[0]
    module = graph.house.modules.get(f"{package}.{wing}")
    return wing if wing and (module is None or module.is_package) else "."


def find_circle(graph: Graph) -> Iterator[str]:
    """Yield a message for a circle of files, if there is one.

    Imports inside functions and for types count. Strings do not: a registry names its members.
    Importing a module does not count as an import of the packages around it.
    """
    edges = {
        name: {
            arrow.target: arrow
            for arrow in reversed(arrows)
            if not arrow.reference.is_string and arrow.target in graph.house.modules
        }
        for name, arrows in graph.arrows_from.items()
    }
    for name, arrows in edges.items():
        arrows.pop(name, None)
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        names = error.args[1][::-1]  # each imports the next
        steps = (edges[name][target].place for name, target in pairwise(names))
        yield (
            "these files import each other in a circle:\n    "
            + "\n    ".join(steps)
            + "\n  fix: move what both need into a third module, or merge the files"
        )


def find_unknown_names(graph: Graph) -> Iterator[str]:
    """Yield a message for each room and wing of ``house.toml`` that does not exist."""
    rooms, wings = graph.plan["rooms"], graph.plan["wings"]
    named = [("rooms", name) for room, allowed in rooms.items() for name in (room, *allowed)]
    named += [
        ("wings", package if wing == "." else f"{package}.{wing}")
        for package, order in wings.items()
        for wing in order
    ]
    for table, name in dict.fromkeys(named):
        if name not in graph.names:
            yield f'[{table}] in {FILE} names "{name}", where no module is\n  fix: correct it'


def find_closure(graph: Graph, entry: Module) -> dict[str, int]:
    """Return the files that a task reaches by any import, and their lines.

    A package around an imported module counts. Libraries do not. A pattern such as ``data.*``
    reaches what the definition beside the task names in its field, and what lies beside the task.
    """
    house, tasks = graph.house, graph.plan["tasks"]
    path = (house.root / entry.path).parent / tasks["definition"]
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    words = set(_list_words(yaml.safe_load(text), tasks["field"]))
    folder = entry.name.rpartition(".")[0]
    reached: set[str] = set()
    queue = [(entry.name, entry.name)]
    while queue:
        name, written = queue.pop()
        if any(_lies_in(name, library) for library in tasks["libraries"]):
            continue
        parts = written.split(".")
        around = (graph.strip_prefix(".".join(parts[:end])) for end in range(1, len(parts)))
        fresh = {name, *around} - reached
        reached |= fresh
        for arrow in (arrow for each in fresh for arrow in graph.arrows_from.get(each, ())):
            if "*" not in arrow.target:
                written = arrow.reference.name
                prefix = written.removesuffix(graph.strip_prefix(written))
                queue.append((arrow.target, prefix + arrow.target))
                continue
            pattern = re.compile(re.escape(arrow.target).replace(r"\*", r"(\w+)"))
            for target in graph.expand(arrow.target):
                match = pattern.fullmatch(target)
                if (match and words.issuperset(match.groups())) or _lies_in(target, folder):
                    queue.append((target, target))
    return {house.modules[n].path: house.modules[n].lines for n in reached & set(house.modules)}


def _list_words(value: object, field: str) -> list[str]:
    """Return the values of a field, wherever it stands in a definition."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    own = value.get(field) if isinstance(value, dict) else None
    words = [own] if isinstance(own, str) else []
    return words + [word for each in inner for word in _list_words(each, field)]


def find_ancestors(graph: Graph, module: Module, cls: Class) -> frozenset[tuple[str, int]]:
    """Return the classes of ours in the MRO of a class, itself included, by path and line."""
    found: set[tuple[str, int]] = set()
    queue = [(module, cls)]
    while queue:
        where, current = queue.pop()
        if (where.path, current.line) not in found:
            found.add((where.path, current.line))
            bases = (_find_class(graph, where, base, current.line) for base in current.bases)
            queue += [base for base in bases if base]
    return frozenset(found)


def _find_class(graph: Graph, module: Module, name: str, line: int) -> tuple[Module, Class] | None:
    """Return the class that a name means at a line of a module, through imports, if it is ours."""
    for _ in range(10):  # packages that pass a name on
        local = [each for each in module.classes if each.name == name and each.line < line]
        if local:
            return module, max(local, key=lambda each: each.line)
        first, _, rest = name.partition(".")
        if first not in module.bindings:
            return None
        bound = graph.strip_prefix(".".join(filter(None, (module.bindings[first], rest))))
        owner = bound
        while owner and owner not in graph.house.modules:
            owner = owner.rpartition(".")[0]
        if not owner or owner == bound:
            return None
        name = bound.removeprefix(f"{owner}.")
        module, line = graph.house.modules[owner], 10**9
    return None
