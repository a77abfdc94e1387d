"""`cepheid leaderboard`: write the results as a static site."""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

if __package__ in (None, ""):  # run as a file of a checkout that is not installed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from compliance import site
from compliance.judge import parallel
from compliance.judge.judgement import judge
from compliance.read import package
from compliance.site import evidence, index
from rules import rounds
from rules.errors import UserError
from tools.cli import EXIT_FINDINGS, EXIT_FINE, run_tool
from tools.console.arguments import add_paths, make_command_parser

EXAMPLES = """\
examples:
  cepheid leaderboard results/first                writes results/first/leaderboard/index.html
  cepheid leaderboard submissions --output site    all submissions, to put on a web server
  cepheid leaderboard results/a results/b --output both     two folders side by side
  cepheid leaderboard training_results_v4.0 --round mlperf-training-4.0 --output v4.0
  cepheid leaderboard submissions --output site --logs copy     with logs and code, to move
  cepheid diff site.old site                       what changed between two builds

The folder links to logs and code where they lie; with --logs copy it holds them as text and needs
nothing else. It opens from a disk and from any web server. results.json holds the same for
programs. A folder of an earlier call is replaced; any other folder is refused. The same results
give the same bytes.

A site without results, or without a result of the site that it replaces, is not written: a folder
may be incomplete or misread. --allow-removal says that results were removed on purpose.

exit codes: 0 no result is rejected; 1 at least one is, its page shows why; 2 wrong use
"""

# What earlier versions wrote: one page and two files.
BEFORE = {"index.html", "leaderboard.csv", "leaderboard.json"}


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of `cepheid leaderboard`."""
    parser = make_command_parser(
        "leaderboard",
        "Write the results as a site: tables, spread of the runs, curves, comparisons.",
        EXAMPLES,
    )
    add = parser.add_argument
    add_paths(parser, "a result's folder, a submitter's folder, or a folder of those")
    add(
        "--output",
        type=Path,
        metavar="DIR",
        help="the folder to write (default: leaderboard in the first PATH)",
    )
    add("--round", default=rounds.CURRENT, help=f"rules to judge by (default: {rounds.CURRENT})")
    add(
        "--reference",
        default="",
        metavar="SUBMITTER/SYSTEM",
        help="the system to compare with (default: that of the reference implementation)",
    )
    add(
        "--logs",
        default="link",
        metavar="copy|link|URL",
        help="where readers find logs and code: as text in the site itself, beside it (default), "
        "or at an address that stands for PATH",
    )
    add("--commit", default="", help="the commit of the submissions, for results.json")
    add(
        "--allow-removal",
        action="store_true",
        help="write the site although results of the one that it replaces are gone, or none is "
        "left: after a withdrawal, or before the first submission of a round",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Write the site and print where it is. Exit code 1 where a result is rejected."""
    arguments = make_parser().parse_args(argv)
    if not arguments.paths:
        raise UserError("no path given; give a folder: cepheid leaderboard results/first")
    judged_in = rounds.load(arguments.round)
    output = arguments.output or _choose_output(arguments.paths[0])
    _refuse_foreign(output)
    packages = [
        package.read(path, judged_in.layout, may_be_empty=arguments.allow_removal)
        for path in arguments.paths
    ]
    judgement = judge(packages, judged_in, parallel.use_processes(None), with_course=True)
    entries = tuple(site.list_entries(judgement))
    if not arguments.allow_removal:
        _refuse_removal(output, entries, arguments.paths)
    _check_reference(arguments.reference, entries)
    logs = evidence.find_evidence(arguments.logs, output, entries, arguments.paths)
    made = site.Site(
        judgement.round, entries, output, arguments.reference, arguments.commit[:64], logs
    )
    _write(output, site.build(made))
    print(output / "index.html")
    is_rejected = any(entry.row.standing.has_failed for entry in entries)
    return EXIT_FINDINGS if is_rejected else EXIT_FINE


def _refuse_removal(output: Path, entries: Sequence[site.Entry], paths: Sequence[Path]) -> None:
    """Raise UserError where the site would have no result, or lose one of the site it replaces."""
    fix = "fix: restore the results, or pass --allow-removal if they were removed on purpose"
    if not entries:
        raise UserError(f"{', '.join(map(str, paths))}: the site would have no result; {fix}")
    if not (output / index.FILE).exists():
        return
    try:
        before = index.read_ids(output)
    except UserError as error:
        raise UserError(f"{error}; {fix}") from error
    gone = sorted(before - {entry.id for entry in entries})
    if gone:
        shown = ", ".join(gone[:5]) + (", …" if len(gone) > 5 else "")
        raise UserError(
            f"{output}: {len(gone)} of the {len(before)} results there would disappear ({shown}); "
            f"{fix}"
        )


def _check_reference(asked: str, entries: Sequence[site.Entry]) -> None:
    known = sorted({entry.system_id for entry in entries if entry.row.has_score})
    if asked and asked not in known:
        shown = ", ".join(known[:8]) or "none"
        raise UserError(f"--reference {asked}: no such system with a score (there are: {shown})")


def _choose_output(path: Path) -> Path:
    if path.exists() and not path.is_dir():
        raise UserError(f"{path}: this is a file; choose the folder to write with --output DIR")
    return path / "leaderboard"


def _refuse_foreign(output: Path) -> None:
    """Raise UserError where writing would replace what this command did not write."""
    if not (output.exists() or output.is_symlink()):
        return
    if output.is_symlink() or not output.is_dir():
        raise UserError(f"{output}: not a folder; choose another --output")
    there = sorted(_list_files(output))
    if not there and not any(output.iterdir()):
        return
    foreign = sorted(set(there) - _read_file_list(output))
    if foreign or "index.html" not in there:
        example = foreign[0] if foreign else next(iter(there), "folders")
        raise UserError(
            f"{output}: holds {example}, which this command did not write; "
            "choose another --output, or move that away"
        )
    generator = f'content="{site.GENERATOR}"'.encode()
    if generator not in (output / "index.html").read_bytes():
        raise UserError(
            f"{output}: index.html is not a leaderboard; choose another --output, or move it away"
        )


def _list_files(output: Path) -> Iterator[str]:
    """Yield all files below a folder, as ``files.txt`` names them; links count as files."""
    for path in output.rglob("*"):
        if path.is_symlink() or not path.is_dir():
            yield path.relative_to(output).as_posix()


def _read_file_list(output: Path) -> set[str]:
    """Return the files that an earlier call listed as its own."""
    try:
        listed = (output / site.FILE_LIST).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return BEFORE
    return set(listed)


def _write(output: Path, files: Iterator[tuple[str, bytes]]) -> None:
    """Write all files beside the folder, then move it into place: no reader sees a half."""
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=output.parent, prefix=f".{output.name}.") as work:
            fresh = Path(work) / "fresh"
            fresh.mkdir()
            for name, content in files:
                path = fresh / PurePosixPath(name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            if output.exists():
                output.rename(Path(work) / "before")
            fresh.rename(output)
    except OSError as error:
        raise UserError(
            f"{output}: cannot be written ({error.strerror}); choose another --output"
        ) from error


if __name__ == "__main__":
    run_tool(main)
