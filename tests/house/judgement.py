"""Compare what was measured with ``house.toml``, and lower its ceilings."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tests.house.counts import Count, count_everything
from tests.house.graph import Graph, find_circles, find_room_arrows, find_wing_arrows
from tests.house.settings import Settings

FILE = "tests/house.toml"
LOWER = "python -m tests.house --lower"
SHOWN = 5  # parts of a number, and files of a circle, in a message
STEP = 50  # lines: ceilings of lines are rounded up to these
SLACK_LINES, SLACK_SHARE = 100, 0.02  # by how much lines may stay below their ceiling
RAISE = f"if it must be, raise the ceiling in {FILE} and say in the commit what left instead"


@dataclass(frozen=True)
class Table:
    """What a table of ceilings counts, and how to get below a ceiling.

    ``limit`` names the limit that holds where the table has no entry. ``is_floor`` says that an
    entry is an exception from that limit, so that it goes when the limit is met.
    """

    unit: str
    fix: str
    limit: str = ""
    is_floor: bool = False
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
        is_floor=True,
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
        "classes of ours in one MRO",
        "pass functions or parts instead",
        limit="classes_in_mro",
        is_floor=True,
    ),
}

KNOWN = {
    "room_arrows": (
        f"this import between rooms is not allowed ([rooms] in {FILE})",
        "move the code to a room that may import it, or pass what it needs as an argument",
    ),
    "wing_arrows": (
        f"this import between wings is not allowed ([wings] in {FILE})",
        "move the code to a wing further up, or correct the order of the wings",
    ),
    "circles": (
        "these files import each other in a circle",
        "move what both need into a third module, or merge the files",
    ),
}


@dataclass(frozen=True)
class Ceiling:
    """One number beside its ceiling: that of its entry in the plan, else a limit for all."""

    count: Count
    table: Table
    entry: int | None
    limit: int

    @property
    def ceiling(self) -> int:
        """Return what the number must not exceed."""
        return self.limit if self.entry is None else self.entry

    @property
    def floor(self) -> int:
        """Return the ceiling below which no entry is needed."""
        return self.limit if self.table.is_floor else 0

    @property
    def lowered(self) -> int:
        """Return the ceiling that the number needs."""
        value = self.count.value
        if self.table.is_lines:
            value = -(-value // STEP) * STEP
        return max(self.floor, value)

    @property
    def is_ordinary(self) -> bool:
        """Return whether this is no exception from a limit that holds everywhere."""
        return self.table.is_floor and self.entry is None and not self.is_above

    @property
    def is_above(self) -> bool:
        """Return whether the number is above its ceiling."""
        return self.count.value > self.ceiling

    @property
    def is_loose(self) -> bool:
        """Return whether the entry should come down."""
        if self.entry is None:
            return False
        slack = max(SLACK_LINES, SLACK_SHARE * self.ceiling) if self.table.is_lines else 0
        if not self.count.value:
            return self.entry > self.floor
        return max(self.floor, self.count.value) < self.entry - slack


def find_table(name: str) -> Table:
    """Return the table of this name; those of lines are called ``lines.<room>``."""
    return LINES if name.startswith("lines.") else TABLES[name]


def compare(counts: Iterable[Count], settings: Settings) -> list[Ceiling]:
    """Return each number beside its ceiling; entries that measure nothing have the value 0."""
    counts = list(counts)
    measured = {(count.table, count.key) for count in counts}
    gone = [
        Count(table, key, 0, ())
        for table, entries in settings.ceilings.items()
        for key in entries
        if (table, key) not in measured
    ]
    compared = []
    for count in [*counts, *gone]:
        table = find_table(count.table)
        limit = settings.limits[table.limit] if table.limit else 0
        entry = settings.ceilings.get(count.table, {}).get(count.key)
        compared.append(Ceiling(count, table, entry, limit))
    return compared


def judge_ceiling(ceiling: Ceiling) -> str | None:
    """Return what is wrong with a number, or None."""
    count, table = ceiling.count, ceiling.table
    name = f"{count.table} {count.key}"
    if ceiling.is_above:
        parts = list(count.parts[:SHOWN])
        if len(count.parts) > SHOWN:
            more = len(count.parts) - SHOWN
            parts.append(f"and {more} more: python -m tests.house {name}")
        listed = "".join(f"\n    {part}" for part in parts)
        return (
            f"{name}: {count.value:,} {table.unit}, the ceiling is {ceiling.ceiling:,} "
            f"([ceilings.{count.table}] in {FILE}){listed}\n  fix: {table.fix}"
        )
    if ceiling.is_loose:
        return (
            f"{name}: {count.value:,} {table.unit}, below the ceiling {ceiling.ceiling:,} "
            f"([ceilings.{count.table}] in {FILE})\n  fix: lower the ceiling: {LOWER}"
        )
    return None


def judge_known(kind: str, found: Mapping[str, list[str]], settings: Settings) -> list[str]:
    """Return what was found and is no known exception, and the exceptions that are gone."""
    what, fix = KNOWN[kind]
    known = settings.known[kind]
    messages = [
        f"{what}: {shorten(key)}"
        + "".join(f"\n    {place}" for place in places)
        + f"\n  fix: {fix}"
        for key, places in sorted(found.items())
        if key not in known
    ]
    messages += [
        f'known exception that is gone: {kind} "{key}"\n'
        f"  fix: remove it from [known] in {FILE}: {LOWER}"
        for key in known
        if key not in found
    ]
    return messages


def shorten(key: str) -> str:
    """Return the name of an arrow or circle, without most files of a large circle."""
    files = key.split(" <> ")
    more = len(files) - SHOWN
    return key if more <= 0 else f"{' <> '.join(files[:SHOWN])} and {more} more files"


def find_known(graph: Graph) -> dict[str, dict[str, list[str]]]:
    """Return all arrows and circles that must not be, known or not, with their places."""
    return {
        "room_arrows": find_room_arrows(graph),
        "wing_arrows": find_wing_arrows(graph),
        "circles": find_circles(graph),
    }


def judge_rooms(graph: Graph) -> list[str]:
    """Return the rooms and wings of ``house.toml`` that do not exist."""
    rooms, wings = graph.house.settings.rooms, graph.house.settings.wings
    named = [("rooms", room) for room in rooms]
    named += [("rooms", name) for allowed in rooms.values() for name in allowed]
    named += [
        ("wings", package if wing == "." else f"{package}.{wing}")
        for package, order in wings.items()
        for wing in order
    ]
    return [
        f'[{table}] in {FILE} names "{name}", where no module is\n  fix: remove or correct it'
        for table, name in dict.fromkeys(named)
        if name not in graph.names
    ]


def judge(graph: Graph) -> list[str]:
    """Return everything that is wrong with the house."""
    settings = graph.house.settings
    messages = judge_rooms(graph)
    for kind, found in find_known(graph).items():
        messages += judge_known(kind, found, settings)
    for ceiling in compare(count_everything(graph), settings):
        if message := judge_ceiling(ceiling):
            messages.append(message)
    return messages


def lower_ceilings(text: str, graph: Graph) -> str:
    """Return the text of ``house.toml`` with lower ceilings and without exceptions that are gone.

    No ceiling is raised.
    """
    settings = graph.house.settings
    ceilings = {
        (ceiling.count.table, ceiling.count.key): ceiling
        for ceiling in compare(count_everything(graph), settings)
    }
    found = {key for keys in find_known(graph).values() for key in keys}
    known = {key for keys in settings.known.values() for key in keys}
    kept, table = [], ""
    for line in text.splitlines(keepends=True):
        if header := re.match(r"\[(.+)\]", line):
            table = header[1].removeprefix("ceilings.")
        entry = re.match(r'("?)([^"=]+?)\1 = [\d_]+', line)
        ceiling = ceilings.get((table, entry[2])) if entry else None
        if ceiling and ceiling.count.value <= ceiling.floor and ceiling.is_loose:
            continue
        if entry and ceiling and ceiling.lowered < ceiling.ceiling:
            line = f"{entry[1]}{entry[2]}{entry[1]} = {ceiling.lowered:_}{line[entry.end() :]}"
        item = line.strip().strip(",").strip('"')
        if item in known and item not in found:
            continue
        kept.append(line)
    return "".join(kept)
