"""Ask mlcommons' checkers what they say of logs, and write it into compliance/README.md.

The peer is the installed ``mlperf_logging`` (extra: test). It takes minutes and executes code, so
it is asked by hand, in processes of its own.
"""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cepheid.rules.errors import UserError
from cepheid.rules.installation import ROOT
from cepheid.tools.console.program import EXIT_FINE, run_tool
from cepheid.tools.peer import changed, published

README = ROOT / "compliance" / "README.md"
PUBLISHED_LOGS = Path(
    os.environ.get("CEPHEID_PUBLISHED_LOGS", ROOT.parent / "shared" / "published_logs")
)
TABLES: Mapping[str, Callable[[Path], str]] = {
    "changed": changed.make_table,
    "published": published.make_tables,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table, or write it into compliance/README.md."""
    parser = argparse.ArgumentParser(prog="python -m cepheid.tools.peer", description=__doc__)
    parser.add_argument(
        "table",
        choices=tuple(TABLES),
        help="changed: changes to a published log; published: every published log as it is",
    )
    parser.add_argument("--write", action="store_true", help="write into compliance/README.md")
    arguments = parser.parse_args(argv)
    text = TABLES[arguments.table](PUBLISHED_LOGS)
    if arguments.write:
        replace_table(arguments.table, text)
    else:
        print(text)
    return EXIT_FINE


def read_table(name: str, file: Path = README) -> str:
    """Return what stands between the marks of a table."""
    return _split(name, file)[1]


def replace_table(name: str, text: str, file: Path = README) -> None:
    """Replace what stands between the marks of a table."""
    before, _, after = _split(name, file)
    file.write_text(f"{before}{text.strip()}\n{after}", encoding="utf-8")


def _split(name: str, file: Path) -> tuple[str, str, str]:
    begin, end = (f"<!-- {name} logs: {where} -->\n" for where in ("begin", "end"))
    before, found_begin, rest = file.read_text(encoding="utf-8").partition(begin)
    table, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise UserError(f"{file}: no lines {begin.strip()} and {end.strip()} to write between")
    return before + begin, table, end + after


if __name__ == "__main__":
    run_tool(main)
