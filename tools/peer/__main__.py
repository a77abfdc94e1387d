"""Ask mlcommons' checkers what they say of logs, and write it as a table into a document.

The peer is the installed ``mlperf_logging`` (extra: test). It takes minutes to hours and executes
code, so it is asked by hand.
"""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cepheid.rules.errors import UserError
from cepheid.rules.host import ROOT
from cepheid.tools.console.program import EXIT_FINE, run_tool
from cepheid.tools.peer import agreement, changed

CHANGED = ROOT / "docs" / "mlperf_tools.md"
PUBLISHED_LOGS = Path(
    os.environ.get("CEPHEID_PUBLISHED_LOGS", ROOT.parent / "shared" / "published_logs")
)
AGREEMENT = ROOT / "docs" / "mlperf_agreement.md"
TABLES: Mapping[str, tuple[Path, Callable[[], str]]] = {
    "changed": (CHANGED, lambda: changed.make_table(PUBLISHED_LOGS)),
    "agreement": (AGREEMENT, agreement.make_tables),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table, or write it into its document."""
    parser = argparse.ArgumentParser(prog="python -m cepheid.tools.peer", description=__doc__)
    parser.add_argument(
        "table",
        choices=(*TABLES, agreement.SPEED),
        help="changed: changes to a published log; agreement: published rounds as they are, from "
        f"clones in the folder that {agreement.VARIABLE} names; speed: how fast both are there, "
        "which the table of the agreement shows; rows of agreement.csv are not measured again",
    )
    parser.add_argument("--write", action="store_true", help="write it into its document")
    arguments = parser.parse_args(argv)
    if arguments.table == agreement.SPEED:
        print(agreement.measure_rounds())
        return EXIT_FINE
    file, make = TABLES[arguments.table]
    text = make()
    if arguments.write:
        replace_table(arguments.table, text, file)
    else:
        print(text)
    return EXIT_FINE


def replace_table(name: str, text: str, file: Path) -> None:
    """Replace what stands between the marks of a table."""
    begin, end = (f"<!-- {name} logs: {where} -->\n" for where in ("begin", "end"))
    before, found_begin, rest = file.read_text(encoding="utf-8").partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found_begin and found_end):
        raise UserError(f"{file}: no lines {begin.strip()} and {end.strip()} to write between")
    file.write_text(f"{before}{begin}{text.strip()}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    run_tool(main)
