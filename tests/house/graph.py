"""Follow imports: from names to files, arrows between rooms and wings, circles, closures."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import yaml
from scipy.sparse.csgraph import connected_components

from tests.house.source import STRING, House, Module, Reference


@dataclass(frozen=True)
class Arrow:
    """One import of a module of ours; ``target`` is its dotted name or, with ``*``, a pattern."""

    source: Module
    reference: Reference
    target: str

    @property
    def key(self) -> str:
        """Return how ``house.toml`` names this arrow."""
        return f"{self.source.path} -> {self.target}"

    @property
    def place(self) -> str:
        """Return file, line and import, as messages show them."""
        return (
            f"{self.source.path}:{self.reference.line} imports {self.target} ({self.reference.how})"
        )


@dataclass(frozen=True)
class Graph:
    """The imports between the modules of a house."""

    house: House
    _patterns: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @cached_property
    def names(self) -> frozenset[str]:
        """Return the dotted names of all modules and folders with modules."""
        names = set(self.house.modules)
        for name in self.house.modules:
            parts = name.split(".")
            names.update(".".join(parts[:end]) for end in range(1, len(parts)))
        return frozenset(names)

    @cached_property
    def arrows(self) -> tuple[Arrow, ...]:
        """Return all imports of ours by ours."""
        return tuple(
            Arrow(module, reference, target)
            for module in self.house.modules.values()
            for reference in module.references
            if (target := self.resolve(reference))
        )

    @cached_property
    def arrows_from(self) -> Mapping[str, tuple[Arrow, ...]]:
        """Return the imports of each module."""
        found: dict[str, list[Arrow]] = {name: [] for name in self.house.modules}
        for arrow in self.arrows:
            found[arrow.source.name].append(arrow)
        return {name: tuple(arrows) for name, arrows in found.items()}

    def strip_prefix(self, name: str) -> str:
        """Return the name as its room has it: ``cepheid.rules.x`` is ``rules.x``."""
        settings = self.house.settings
        first, _, rest = name.partition(".")
        is_prefix = first in (settings.prefix, "*") and rest.split(".")[0] in settings.rooms
        return rest if is_prefix else name

    def resolve(self, reference: Reference) -> str | None:
        """Return the module, folder or pattern that a name means, or None if it is not ours."""
        name = self.strip_prefix(reference.name)
        if name.split(".")[0] not in self.house.settings.rooms:
            return None
        if reference.how == STRING:
            is_ours = self.expand(name) if "*" in name else name in self.names
            return name if is_ours else None
        while name and name not in self.names:
            name = name.rpartition(".")[0]
        return name or None

    def expand(self, target: str) -> tuple[str, ...]:
        """Return the names that a pattern may mean, or the name itself."""
        if "*" not in target:
            return (target,)
        if target not in self._patterns:
            pattern = re.compile(re.escape(target).replace(r"\*", r"\w+"))
            self._patterns[target] = tuple(filter(pattern.fullmatch, sorted(self.names)))
        return self._patterns[target]


def find_room_arrows(graph: Graph) -> dict[str, list[str]]:
    """Return the imports between rooms that ``[rooms]`` does not allow, with their places."""
    found: dict[str, list[str]] = {}
    for arrow in graph.arrows:
        room = arrow.source.room
        allowed = graph.house.settings.rooms[room]
        if not any(_lies_in(arrow.target, name) for name in (room, *allowed)):
            why = f"{room} may import {', '.join(allowed) or 'no other room'}"
            found.setdefault(arrow.key, []).append(f"{arrow.place}: {why}")
    return {key: list(dict.fromkeys(places)) for key, places in found.items()}


def find_wing_arrows(graph: Graph) -> dict[str, list[str]]:
    """Return the imports between wings that the order in ``[wings]`` does not allow."""
    found: dict[str, list[str]] = {}
    for package, order in graph.house.settings.wings.items():
        for arrow in graph.arrows:
            if not _lies_in(arrow.source.name, package):
                continue
            start = _find_wing(graph, package, arrow.source.name)
            for target in graph.expand(arrow.target):
                if not _lies_in(target, package):
                    continue
                end = _find_wing(graph, package, target)
                if start == end:
                    continue
                missing = [wing for wing in (start, end) if wing not in order]
                if missing:
                    why = f'"{missing[0]}" is not in the order of the wings of {package}'
                elif order.index(end) > order.index(start):
                    why = f'in {package}, "{end}" stands above "{start}"'
                else:
                    continue
                found.setdefault(arrow.key, []).append(f"{arrow.place}: {why}")
    return {key: list(dict.fromkeys(places)) for key, places in found.items()}


def _lies_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def _find_wing(graph: Graph, package: str, name: str) -> str:
    """Return the folder within a package where a module lies; "." for the package itself."""
    wing = name.removeprefix(package).removeprefix(".").split(".")[0]
    module = graph.house.modules.get(f"{package}.{wing}")
    is_folder = wing and (module is None or module.path.endswith("/__init__.py"))
    return wing if is_folder else "."


def find_circles(graph: Graph) -> dict[str, list[str]]:
    """Return the circles of files, by the names of their files, with the imports that close them.

    Imports inside functions and for types count. Strings do not: a registry names its members.
    Importing a module does not count as an import of the packages around it. Circles that share
    a file are one; the imports are those of the shortest.
    """
    modules = graph.house.modules
    edges: dict[str, dict[str, Arrow]] = {
        name: {
            arrow.target: arrow
            for arrow in reversed(arrows)
            if arrow.reference.how != STRING and arrow.target in modules
        }
        for name, arrows in graph.arrows_from.items()
    }
    found = {}
    for component in _find_components(edges):
        key = " <> ".join(sorted(modules[name].path for name in component))
        circles = (_find_shortest_circle(edges, start) for start in sorted(component))
        found[key] = [arrow.place for arrow in min(circles, key=len)]
    return found


def _find_shortest_circle(edges: Mapping[str, Mapping[str, Arrow]], start: str) -> list[Arrow]:
    """Return the fewest imports that lead from a file of a circle back to it."""
    paths: dict[str, list[Arrow]] = {start: []}
    queue = [start]
    for name in queue:
        for target, arrow in edges[name].items():
            if target == start and name != start:
                return [*paths[name], arrow]
            if target not in paths:
                paths[target] = [*paths[name], arrow]
                queue.append(target)
    raise AssertionError(f"{start} is in no circle")


def _find_components(edges: Mapping[str, Iterable[str]]) -> Iterator[frozenset[str]]:
    """Yield the strongly connected components of two nodes or more."""
    numbers = {node: number for number, node in enumerate(edges)}
    pairs = [(numbers[node], numbers[end]) for node, ends in edges.items() for end in ends]
    matrix = np.zeros((len(edges), len(edges)), dtype=bool)
    matrix[tuple(np.array(pairs, dtype=int).reshape(-1, 2).T)] = True
    _, labels = connected_components(matrix, connection="strong")
    components: dict[int, set[str]] = {}
    for node, number in numbers.items():
        components.setdefault(int(labels[number]), set()).add(node)
    return (frozenset(nodes) for nodes in components.values() if len(nodes) > 1)


def find_closure(graph: Graph, entry: Module) -> dict[str, int]:
    """Return the files that a task reaches by any import, and their lines.

    A package around an imported module counts. Libraries do not. A pattern such as
    ``data.*`` reaches what the definition beside the task names, and what lies beside the task.
    """
    house = graph.house
    words = _read_words(house, entry)
    folder = entry.name.rpartition(".")[0]
    reached: set[str] = set()
    queue = [(entry.name, entry.name)]
    while queue:
        name, written = queue.pop()
        if any(_lies_in(name, library) for library in house.settings.libraries):
            continue
        parts = written.split(".")
        around = (graph.strip_prefix(".".join(parts[:end])) for end in range(1, len(parts)))
        fresh = {name, *around} - reached
        reached |= fresh
        for module in fresh & set(house.modules):
            for arrow in graph.arrows_from[module]:
                if "*" not in arrow.target:
                    written = arrow.reference.name
                    prefix = written.removesuffix(graph.strip_prefix(written))
                    queue.append((arrow.target, prefix + arrow.target))
                    continue
                pattern = re.compile(re.escape(arrow.target).replace(r"\*", r"(\w+)"))
                for target in graph.expand(arrow.target):
                    match = pattern.fullmatch(target)
                    named = match is not None and words.issuperset(match.groups())
                    if named or _lies_in(target, folder):
                        queue.append((target, target))
    return {house.modules[n].path: house.modules[n].lines for n in reached & set(house.modules)}


def _read_words(house: House, entry: Module) -> frozenset[str]:
    """Return all texts in the definition of a task."""
    path = (house.root / entry.path).parent / house.settings.definition
    if not path.is_file():
        return frozenset()
    words: set[str] = set()
    queue = [yaml.safe_load(path.read_text(encoding="utf-8"))]
    while queue:
        value = queue.pop()
        if isinstance(value, str):
            words.add(value)
        elif isinstance(value, dict):
            queue += value.values()
        elif isinstance(value, list):
            queue += value
    return frozenset(words)
