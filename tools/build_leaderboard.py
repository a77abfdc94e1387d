"""`cepheid leaderboard`: write the results as one page with tables and plots."""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from compliance import leaderboard, package, site
from compliance.judge import judge
from rules import rounds
from rules.errors import UserError
from tools.arguments import add_paths, command_parser
from tools.cli import EXIT_FINDINGS, EXIT_FINE, run_tool

EXAMPLES = """\
examples:
  cepheid leaderboard results/first                writes results/first/leaderboard/index.html
  cepheid leaderboard submissions --output site    all submissions, to put on a web server

The folder holds index.html, one file that needs nothing else but the logs it links to, and the same
rows as leaderboard.csv and leaderboard.json. A folder of an earlier call is replaced, another one
is left alone.

exit codes: 0 no result is rejected; 1 at least one is, the page shows why; 2 wrong use
"""

FILES = ("index.html", "leaderboard.csv", "leaderboard.json")


def parser() -> argparse.ArgumentParser:
    """The command line of `cepheid leaderboard`."""
    made = command_parser(
        "leaderboard",
        "Write the results as one page: tables, spread of the runs, quality over time.",
        EXAMPLES,
    )
    add = made.add_argument
    add_paths(made, "a result's folder, a submitter's folder, or a folder of those")
    add(
        "--output",
        type=Path,
        metavar="DIR",
        help="the folder to write (default: leaderboard in the first PATH)",
    )
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page and print where it is. Exit code 1 where a result is rejected."""
    arguments = parser().parse_args(argv)
    if not arguments.paths:
        raise UserError("which results? give a folder, e.g. cepheid leaderboard results/first")
    output = arguments.output or _default_output(arguments.paths[0])
    _refuse_foreign(output)
    packages = [package.read(path) for path in arguments.paths]
    judgement = judge(packages, rounds.load())
    rows = leaderboard.rows(judgement)
    contents = {
        "index.html": site.page(rows, judgement.round, output),
        "leaderboard.csv": leaderboard.as_csv(rows),
        "leaderboard.json": leaderboard.as_json(rows),
    }
    _write(output, contents)
    print(output / "index.html")
    is_rejected = any(row.verdict == "rejected" for row in rows)
    return EXIT_FINDINGS if is_rejected else EXIT_FINE


def _default_output(path: Path) -> Path:
    if path.exists() and not path.is_dir():
        raise UserError(f"{path}: this is a file; say where to write with --output DIR")
    return path / "leaderboard"


def _refuse_foreign(output: Path) -> None:
    """Raise UserError where writing would replace what this command did not write."""
    if not (output.exists() or output.is_symlink()):
        return
    if output.is_symlink() or not output.is_dir():
        raise UserError(f"{output}: is not a folder; choose another --output")
    there = {path.name for path in output.iterdir()}
    foreign = sorted(there - set(FILES))
    if foreign or (there and "index.html" not in there):
        example = foreign[0] if foreign else sorted(there)[0]
        raise UserError(
            f"{output}: holds {example}, which this command did not write; "
            "choose another --output, or move that away"
        )
    if there and b'content="cepheid leaderboard"' not in (output / "index.html").read_bytes():
        raise UserError(
            f"{output}: index.html is not a leaderboard; choose another --output, or move it away"
        )


def _write(output: Path, contents: Mapping[str, str]) -> None:
    """Write all files beside the folder, then put the folder in place: no reader sees a half."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as work:
            fresh = Path(work) / "fresh"
            fresh.mkdir()
            for name, text in contents.items():
                (fresh / name).write_text(text + "\n", "utf-8", errors="backslashreplace")
            if output.exists():
                output.rename(Path(work) / "before")
            fresh.rename(output)
    except OSError as error:
        raise UserError(
            f"{output}: cannot be written ({error.strerror}); choose another --output"
        ) from error


if __name__ == "__main__":
    run_tool(main)
