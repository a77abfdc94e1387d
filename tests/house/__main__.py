"""Print the numbers of the house, list what is behind one of them, or lower the ceilings."""

import argparse
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from tests.house.ceilings import Ceiling, compare, judge, lower_ceilings
from tests.house.graph import FILE, Graph
from tests.house.source import read_house

ROOT = Path(__file__).parents[2]


def read_graph(root: Path) -> Graph:
    """Return the imports of the checkout ``root``, with its plan."""
    return Graph(read_house(root, (root / FILE).read_text(encoding="utf-8")))


def print_ceilings(ceilings: Sequence[Ceiling]) -> None:
    """Print each number that has a ceiling beside it, table by table."""
    for table, rows in groupby(ceilings, key=lambda ceiling: ceiling.table):
        print(f"\n{table}")
        for row in rows:
            mark = "  ABOVE" if row.is_above else "  can come down" if row.is_loose else ""
            print(f"  {row.key:<34}{row.value:>8,}  of {row.ceiling:>7,}{mark}")


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
        plan.write_text(lower_ceilings(plan.read_text(encoding="utf-8"), graph), encoding="utf-8")
        graph = read_graph(root)
    ceilings = sorted(compare(graph), key=lambda ceiling: (ceiling.table, ceiling.key))
    if given.table:
        rows = [row for row in ceilings if row.table == given.table and row.parts]
        chosen = [row for row in rows if given.key in (None, row.key)]
        if not chosen:
            names = dict.fromkeys([row.key for row in rows] or [row.table for row in ceilings])
            wrong = given.key if rows else given.table
            parser.error(f'nothing is called "{wrong}" (all: {", ".join(names)})')
        for row in chosen:
            print_ceilings([row])
            print("".join(f"    {part}\n" for part in row.parts), end="")
        return 0
    print_ceilings([row for row in ceilings if not row.is_ordinary])
    messages = judge(graph)
    print("".join(f"\n{message}\n" for message in messages), end="")
    return 1 if messages else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
