"""Count what has a ceiling, compare it with ``house.toml``, and lower the ceilings there."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch

from tests.house.graph import (
    FILE,
    Graph,
    find_ancestors,
    find_circle,
    find_closure,
    find_unknown_names,
    find_wrong_arrows,
)

LOWER = "python -m tests.house --lower"
SHOWN = 5  # parts of a number in a message
STEP = 50  # lines: ceilings of lines are rounded up to these
SLACK_LINES, SLACK_SHARE = 100, 0.02  # by how much lines may stay below their ceiling
RAISE = f"if it must be, raise the ceiling in {FILE} and say in the commit what left instead"


@dataclass(frozen=True)
class Table:
    """What a table of ceilings counts, and how to get below a ceiling.

    ``limit`` names the limit that holds where the table has no entry: an entry is an exception.
    """

    unit: str
    fix: str
    limit: str = ""
    is_lines: bool = False


LINES = Table("lines", f"shorten or remove something; {RAISE}", is_lines=True)
TABLES: Mapping[str, Table] = {
    "python": LINES,
    "closures": Table(
        "lines behind the task",
        "cut an import that drags in much, deferred ones too; `python -m tests.house closures NAME`"
        f" lists the files; {RAISE}",
        limit="closure",
        is_lines=True,
    ),
    "folders": Table(
        "modules in the folder",
        "merge modules or give some a folder of their own",
        limit="modules_in_folder",
    ),
    "short_modules": Table("modules are too short", "merge them with what they belong to"),
    "long_modules": Table("modules are too long", "split them by what they do"),
    "parameters": Table(
        "functions have too many parameters", "pass a frozen dataclass, or split the function"
    ),
    "deep_classes": Table(
        "classes have too many of our classes in their MRO", "pass functions or parts instead"
    ),
    "deepest_class": Table(
        "classes of ours in one MRO", "pass functions or parts instead", limit="classes_in_mro"
    ),
}


@dataclass(frozen=True)
class Ceiling:
    """One number beside its ceiling: that of its ``entry`` in the plan, else a limit for all.

    ``parts`` says what the number is made of, the largest first.
    """

    table: str
    key: str
    value: int
    parts: tuple[str, ...]
    entry: int | None
    limit: int

    @property
    def kind(self) -> Table:
        """Return what the table counts; those of lines are called ``lines.<room>``."""
        return LINES if self.table.startswith("lines.") else TABLES[self.table]

    @property
    def ceiling(self) -> int:
        """Return what the number must not exceed."""
        return self.limit if self.entry is None else self.entry

    @property
    def lowered(self) -> int:
        """Return the ceiling that the number needs."""
        step = STEP if self.kind.is_lines else 1
        return max(self.limit, -(-self.value // step) * step)

    @property
    def is_ordinary(self) -> bool:
        """Return whether this is no exception from a limit that holds everywhere."""
        return bool(self.limit) and self.entry is None and not self.is_above

    @property
    def is_above(self) -> bool:
        """Return whether the number is above its ceiling."""
        return self.value > self.ceiling

    @property
    def is_loose(self) -> bool:
        """Return whether the entry should come down."""
        has_slack = self.kind.is_lines and self.value
        slack = max(SLACK_LINES, SLACK_SHARE * self.ceiling) if has_slack else 0
        return self.entry is not None and max(self.limit, self.value) < self.entry - slack


def compare(graph: Graph) -> list[Ceiling]:
    """Return each number beside its ceiling; entries that measure nothing have the value 0."""
    house = graph.house
    counts: dict[tuple[str, str], Mapping[str, int]] = {}
    counts |= {(f"lines.{room}", kind): files for (room, kind), files in house.lines.items()}
    counts["python", "outside_tests"] = {
        path: lines
        for (room, kind), files in house.lines.items()
        if kind == "python" and room != graph.plan["tests"]
        for path, lines in files.items()
    }
    sums = {place: sum(files.values()) for place, files in counts.items()}
    for module in house.modules.values():
        if fnmatch(module.path, graph.plan["tasks"]["entries"]):
            place = "closures", module.path.split("/")[-2]
            counts[place] = find_closure(graph, module)
            sums[place] = sum(counts[place].values())
    of_places = defaultdict[tuple[str, str], dict[str, int]](dict)
    for table, key, part, number in _list_faults(graph):
        of_places[table, key][part] = number
    for place, parts in of_places.items():
        counts[place] = parts
        sums[place] = max(parts.values()) if place[0] == "deepest_class" else len(parts)
    entries = dict(graph.plan["ceilings"])
    entries |= {f"lines.{room}": kinds for room, kinds in entries.pop("lines", {}).items()}
    gone = {(table, key): 0 for table, keys in entries.items() for key in keys}
    return [
        Ceiling(
            table,
            key,
            value,
            _format_parts(counts.get((table, key), {})),
            entries.get(table, {}).get(key),
            graph.plan["limits"].get(TABLES[table].limit, 0) if table in TABLES else 0,
        )
        for (table, key), value in {**sums, **{k: 0 for k in gone if k not in sums}}.items()
    ]


def _list_faults(graph: Graph) -> Iterator[tuple[str, str, str, int]]:
    """Yield table, key, place and size of each thing that is counted one by one."""
    limits = graph.plan["limits"]
    for module in graph.house.modules.values():
        room = module.room
        if not module.is_package:
            yield "folders", module.path.rpartition("/")[0], module.path, module.lines
            if module.lines < limits["shortest_module"]:
                yield "short_modules", room, module.path, module.lines
            if module.lines > limits["longest_module"]:
                yield "long_modules", room, module.path, module.lines
        for function in module.functions:
            if function.parameters > limits["parameters"]:
                place = f"{module.path}:{function.line} {function.name}"
                yield "parameters", room, place, function.parameters
        for each in module.classes:
            count = len(find_ancestors(graph, module, each)) if each.bases else 0
            if count > limits["classes_in_mro"]:
                for table in ("deep_classes", "deepest_class"):
                    yield table, room, f"{module.path}:{each.line} {each.name}", count


def _format_parts(parts: Mapping[str, int]) -> tuple[str, ...]:
    ordered = sorted(parts.items(), key=lambda item: (-item[1], item[0]))
    return tuple(f"{part} ({number:,})" for part, number in ordered)


def judge(graph: Graph) -> list[str]:
    """Return everything that is wrong with the house."""
    arrows = [*find_wrong_arrows(graph), *find_circle(graph)]
    messages = list(dict.fromkeys([*find_unknown_names(graph), *arrows]))
    for ceiling in compare(graph):
        name = f"{ceiling.table} {ceiling.key}"
        fact = f"{name}: {ceiling.value:,} {ceiling.kind.unit}"
        place = f"{ceiling.ceiling:,} ([ceilings.{ceiling.table}] in {FILE})"
        if ceiling.is_above:
            parts = list(ceiling.parts[:SHOWN])
            if len(ceiling.parts) > SHOWN:
                more = len(ceiling.parts) - SHOWN
                parts.append(f"and {more} more: python -m tests.house {name}")
            listed = "".join(f"\n    {part}" for part in parts)
            messages.append(f"{fact}, the ceiling is {place}{listed}\n  fix: {ceiling.kind.fix}")
        elif ceiling.is_loose:
            messages.append(f"{fact}, below the ceiling {place}\n  fix: lower the ceiling: {LOWER}")
    return messages


def lower_ceilings(text: str, graph: Graph) -> str:
    """Return the text of ``house.toml`` with lower ceilings; none is raised."""
    ceilings = {(ceiling.table, ceiling.key): ceiling for ceiling in compare(graph)}
    kept, table = [], ""
    for line in text.splitlines(keepends=True):
        if header := re.match(r"\[(.+)\]", line):
            table = header[1].removeprefix("ceilings.")
        entry = re.match(r'("?)([^"=]+?)\1 = [\d_]+', line)
        ceiling = ceilings.get((table, entry[2])) if entry else None
        if ceiling and ceiling.is_loose and ceiling.value <= ceiling.limit:
            continue
        if entry and ceiling and ceiling.lowered < ceiling.ceiling:
            line = f"{entry[1]}{entry[2]}{entry[1]} = {ceiling.lowered:_}{line[entry.end() :]}"
        kept.append(line)
    return "".join(kept)
