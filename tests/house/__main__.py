"""Print the numbers of the house, list what is behind one of them, or lower the ceilings."""

import argparse
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from tests.house.counts import count_everything
from tests.house.graph import Graph
from tests.house.judgement import FILE, Ceiling, compare, find_known, judge, lower_ceilings, shorten
from tests.house.settings import read_settings
from tests.house.source import read_house

ROOT = Path(__file__).parents[2]


def read_graph(root: Path) -> Graph:
    """Return the imports of the checkout ``root``, with the settings of its plan."""
    return Graph(read_house(root, read_settings(root / FILE)))


def print_ceilings(ceilings: Sequence[Ceiling]) -> None:
    """Print each number that has a ceiling beside it, table by table."""
    for table, rows in groupby(ceilings, key=lambda ceiling: ceiling.count.table):
        print(f"\n{table}")
        for row in rows:
            mark = "  ABOVE" if row.is_above else "  can come down" if row.is_loose else ""
            print(f"  {row.count.key:<34}{row.count.value:>8,}  of {row.ceiling:>7,}{mark}")


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Run the command. Return 1 if something is above its ceiling, 2 for wrong use, else 0."""
    parser = argparse.ArgumentParser(prog="python -m tests.house", description=__doc__)
    parser.add_argument("table", nargs="?", help="the table of a number, for example closures")
    parser.add_argument("key", nargs="?", help="its key, for example ssd")
    parser.add_argument(
        "--lower", action="store_true", help="lower the ceilings of house.toml to what they must be"
    )
    given = parser.parse_args(arguments)
    graph = read_graph(root)
    if given.lower:
        plan = root / FILE
        lowered = lower_ceilings(plan.read_text(encoding="utf-8"), graph)
        plan.write_text(lowered, encoding="utf-8")
        graph = read_graph(root)
    ceilings = compare(count_everything(graph), graph.house.settings)
    if given.table:
        rows = [row for row in ceilings if row.count.table == given.table and row.count.parts]
        chosen = [row for row in rows if given.key in (None, row.count.key)]
        if not chosen:
            names = [row.count.key for row in rows] or [row.count.table for row in ceilings]
            wrong = given.key if rows else given.table
            parser.error(f'nothing is called "{wrong}" (all: {", ".join(dict.fromkeys(names))})')
        for row in chosen:
            print_ceilings([row])
            print("".join(f"    {part}\n" for part in row.count.parts), end="")
        return 0
    print_ceilings([row for row in ceilings if not row.is_ordinary])
    for kind, found in find_known(graph).items():
        print(f"\n{kind}: {len(found)}")
        for key in sorted(found):
            print(f"  {shorten(key)}")
    wrong_house = judge(graph)
    print("".join(f"\n{message}\n" for message in wrong_house), end="")
    return 1 if wrong_house else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
