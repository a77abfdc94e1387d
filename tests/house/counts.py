"""Count what has a ceiling: lines, modules, parameters, classes and closures."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch

from tests.house.graph import Graph, find_closure
from tests.house.source import Class, House, Module


@dataclass(frozen=True)
class Count:
    """One number, and what it is made of, the largest first."""

    table: str
    key: str
    value: int
    parts: tuple[str, ...]


def count_everything(graph: Graph) -> list[Count]:
    """Return all numbers that may have a ceiling."""
    house = graph.house
    return [
        *count_lines(house),
        *count_python(house),
        *count_closures(graph),
        *count_folders(house),
        *count_modules(house),
        *count_parameters(house),
        *count_classes(graph),
    ]


def count_lines(house: House) -> Iterator[Count]:
    """Yield the lines of each kind in each room."""
    for (room, kind), files in sorted(house.lines.items()):
        yield _sum_files(f"lines.{room}", kind, files)


def count_python(house: House) -> Iterator[Count]:
    """Yield the lines of Python outside of the room of the tests."""
    files: dict[str, int] = {}
    for (room, kind), found in house.lines.items():
        if kind == "python" and room != house.settings.tests:
            files.update(found)
    yield _sum_files("python", "outside_tests", files)


def count_closures(graph: Graph) -> Iterator[Count]:
    """Yield the lines behind each task."""
    for module in graph.house.modules.values():
        if fnmatch(module.path, graph.house.settings.entries):
            yield _sum_files("closures", module.path.split("/")[-2], find_closure(graph, module))


def count_folders(house: House) -> Iterator[Count]:
    """Yield the number of modules in each folder."""
    folders = defaultdict(list)
    for module in _list_modules(house):
        folders[module.path.rpartition("/")[0]].append(module.path)
    for folder, paths in sorted(folders.items()):
        yield Count("folders", folder, len(paths), tuple(paths))


def count_modules(house: House) -> Iterator[Count]:
    """Yield, for each room, how many modules are too short and too long."""
    shortest = house.settings.limits["shortest_module"]
    longest = house.settings.limits["longest_module"]
    tables: dict[str, Callable[[int], bool]] = {
        "short_modules": lambda lines: lines < shortest,
        "long_modules": lambda lines: lines > longest,
    }
    for table, is_wrong in tables.items():
        files: dict[str, dict[str, int]] = defaultdict(dict)
        for module in _list_modules(house):
            if is_wrong(module.lines):
                files[module.room][module.path] = module.lines
        for room, found in files.items():
            yield Count(table, room, len(found), _sort_files(found))


def count_parameters(house: House) -> Iterator[Count]:
    """Yield, for each room, how many functions have too many parameters."""
    most = house.settings.limits["parameters"]
    found = [
        (module.room, each.parameters, f"{module.path}:{each.line} {each.name}")
        for module in house.modules.values()
        for each in module.functions
        if each.parameters > most
    ]
    yield from _count_by_room("parameters", found)


def count_classes(graph: Graph) -> Iterator[Count]:
    """Yield, for each room, how many classes have too many of ours in their MRO, and the most."""
    most = graph.house.settings.limits["classes_in_mro"]
    found = [
        (
            module.room,
            len(find_ancestors(graph, module, each)),
            f"{module.path}:{each.line} {each.name}",
        )
        for module in graph.house.modules.values()
        for each in module.classes
        if each.bases
    ]
    found = [(room, count, place) for room, count, place in found if count > most]
    yield from _count_by_room("deep_classes", found)
    for room in dict.fromkeys(room for room, _, _ in found):
        deepest = max(count for where, count, _ in found if where == room)
        places = [place for where, count, place in found if where == room and count == deepest]
        yield Count("deepest_class", room, deepest, tuple(places))


def find_ancestors(graph: Graph, module: Module, cls: Class) -> frozenset[tuple[str, int]]:
    """Return the classes of ours in the MRO of a class, itself included, by path and line."""
    found: set[tuple[str, int]] = set()
    queue = [(module, cls)]
    while queue:
        where, one = queue.pop()
        if (where.path, one.line) in found:
            continue
        found.add((where.path, one.line))
        bases = (_find_class(graph, where, base, one.line) for base in one.bases)
        queue += [base for base in bases if base]
    return frozenset(found)


def _find_class(graph: Graph, module: Module, name: str, line: int) -> tuple[Module, Class] | None:
    """Return the class that a name means at a line of a module, through imports, if it is ours."""
    for _ in range(10):  # packages that pass a name on
        local = [each for each in module.classes if each.name == name and each.line < line]
        if local:
            return module, local[-1]
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


def _list_modules(house: House) -> Iterator[Module]:
    return (each for each in house.modules.values() if not each.path.endswith("/__init__.py"))


def _sum_files(table: str, key: str, files: Mapping[str, int]) -> Count:
    return Count(table, key, sum(files.values()), _sort_files(files))


def _sort_files(files: Mapping[str, int]) -> tuple[str, ...]:
    ordered = sorted(files.items(), key=lambda item: (-item[1], item[0]))
    return tuple(f"{path} ({lines:,} lines)" for path, lines in ordered)


def _count_by_room(table: str, found: Iterable[tuple[str, int, str]]) -> Iterator[Count]:
    rooms: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for room, count, place in found:
        rooms[room].append((count, place))
    for room, places in sorted(rooms.items()):
        ordered = sorted(places, key=lambda item: (-item[0], item[1]))
        yield Count(table, room, len(places), tuple(f"{place} ({n})" for n, place in ordered))
