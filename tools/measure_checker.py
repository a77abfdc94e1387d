"""Compare the speed of the checker with that of mlcommons' own: python tools/measure_checker.py."""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

if __package__ in (None, ""):  # run as a file of a checkout that is not installed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from cepheid.rules import rounds
from cepheid.rules.errors import UserError
from cepheid.rules.host import ROOT, usable_processors
from cepheid.tools.console.program import EXIT_FINE, run_tool

EPILOG = """\
Each checker reads and checks all logs in a process of its own, in turns: ours, theirs, ours, …
The time to start the process and to import the checker is shown, but not counted. Each row gives
medians over the turns, and the lowest and the highest in brackets. A ratio above 1 means that
Cepheid is faster. Needs mlperf-logging (extra: test).

rows:
  as-is      the logs as they are
  labelled   the same, each line with the label of a rank before it, as `srun --label` writes it
  metadata   the same, with lists, nested objects, times and addresses in the metadata

examples:
  python tools/measure_checker.py ../shared/published_logs/mlperf-training-4.0 \\
      --round mlperf-training-4.0
  python tools/measure_checker.py results/first --rows as-is --turns 3 --copies 0
"""

OURS = """
import gc
from pathlib import Path
from cepheid.compliance.checks import Place, check_log
from cepheid.compliance.read.log import runlog
from cepheid.rules import rounds
from cepheid.tools.check_compliance import GARBAGE_OBJECTS
gc.set_threshold(GARBAGE_OBJECTS)
judged_in = rounds.load(options["round"])
place = Place(judged_in.name)
def check(path):
    check_log(runlog.read(Path(path)), place, judged_in)
"""
THEIRS = """
import logging
from mlperf_logging.compliance_checker import mlp_compliance
logging.disable(logging.CRITICAL)
def check(path):
    checker = mlp_compliance.make_checker("training", options["ruleset"], True, False)
    mlp_compliance.main(path, f"training_{options['ruleset']}/common.yaml", checker)
"""
PROGRAM = """
import contextlib, io, json, resource, sys, time
options = json.load(sys.stdin)
{checker}
start, wall, processor, failed = time.process_time(), time.perf_counter(), time.process_time(), 0
with contextlib.redirect_stdout(io.StringIO()):
    for path in options["paths"]:
        try:
            check(path)
        except Exception:
            failed += 1
wall, processor = time.perf_counter() - wall, time.process_time() - processor
mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps(dict(wall=wall, processor=processor, start=start, mib=mib, failed=failed)))
"""
CHECKERS: Mapping[str, str] = {"cepheid": OURS, "mlperf_logging": THEIRS}


@dataclass(frozen=True)
class Turn:
    """One process that checked all logs.

    Times are in seconds, ``start`` is processor time before the first log. ``failed`` counts the
    logs at which the checker raised an exception.
    """

    wall: float
    processor: float
    start: float
    mib: float
    failed: int


def make_parser() -> argparse.ArgumentParser:
    """Make the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("paths", nargs="+", type=Path, metavar="LOG_OR_FOLDER", help="run logs, or folders of them")
    add("--round", default=rounds.CURRENT, help=f"our rules (default: {rounds.CURRENT})")
    add("--ruleset", default="4.0.0", help="the rules of mlperf_logging (default: 4.0.0)")
    add("--turns", type=int, default=7, help="processes of each checker (default: 7)")
    add("--rows", nargs="+", choices=tuple(ROWS), default=list(ROWS), help="default: all three")
    add("--copies", type=int, default=2000, metavar="N", help="copies of the logs on which --jobs "
        "is measured, 0 for none (default: 2000)")  # fmt: skip
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    arguments = make_parser().parse_args(argv)
    logs = [log.resolve() for path in arguments.paths for log in find_logs(path)]
    if not logs:
        raise UserError(f"{arguments.paths[0]}: no result_<k>.txt there; give logs or their folder")
    if arguments.turns < 1:
        raise UserError(f"--turns {arguments.turns}: give 1 or more")
    rounds.load(arguments.round)
    print(f"logs: {len(logs):,}, turns: {arguments.turns}; medians (lowest to highest)")
    for row in arguments.rows:
        with tempfile.TemporaryDirectory() as folder:
            change = ROWS[row]
            paths = copy_logs(logs, Path(folder), change) if change else logs
            print(describe_row(row, *_take_turns(paths, arguments)))
    seconds = [_measure_one_log(logs[0], arguments.round) for _ in range(arguments.turns)]
    print(f"one log, from the start of the process: {describe_spread(seconds, 3)} s")
    if arguments.copies:
        _measure_jobs(logs, arguments.copies, arguments.round)
    return EXIT_FINE


def find_logs(path: Path) -> list[Path]:
    """Return the run logs under a path, or the path itself if it is a file."""
    return sorted(path.rglob("result_*.txt")) if path.is_dir() else [path]


def add_label(number: int, line: bytes) -> bytes:
    """Return a line with the label of one of eight ranks before it."""
    return b"%d: %s" % (number % 8, line)


def add_metadata(number: int, line: bytes) -> bytes:
    """Return a line with more metadata in its record: what stands there changes with the number."""
    extra = (
        b'"command": "train --set \\"lr: 0.1\\"", ',
        b'"first_and_last_step": [2, 2930], ',
        b'"rank": {"node": {"gpu": 3, "address": "0000:1a:00.0"}}, ',
        b'"written": "2024-05-01 12:00:01", ',
    )
    return line.replace(b'"metadata": {', b'"metadata": {' + extra[number % len(extra)])


ROWS: Mapping[str, Callable[[int, bytes], bytes] | None] = {
    "as-is": None,
    "labelled": add_label,
    "metadata": add_metadata,
}


def copy_logs(
    logs: Sequence[Path], folder: Path, change: Callable[[int, bytes], bytes]
) -> list[Path]:
    """Write copies with every line changed into a folder, and return their paths."""
    copies = []
    for number, log in enumerate(logs):
        lines = log.read_bytes().split(b"\n")
        changed = [change(i, line) if line else line for i, line in enumerate(lines)]
        copies.append(folder / f"{number}" / log.name)
        copies[-1].parent.mkdir()
        copies[-1].write_bytes(b"\n".join(changed))
    return copies


def _take_turns(
    paths: Sequence[Path], arguments: argparse.Namespace
) -> tuple[float, dict[str, list[Turn]]]:
    """Return the megabytes of the logs, and the turns of each checker."""
    taken: dict[str, list[Turn]] = {name: [] for name in CHECKERS}
    for _ in range(arguments.turns):
        for name, checker in CHECKERS.items():
            taken[name].append(run_checker(checker, paths, arguments.round, arguments.ruleset))
    return sum(path.stat().st_size for path in paths) / 1e6, taken


def run_checker(checker: str, paths: Sequence[Path], round_name: str, ruleset: str) -> Turn:
    """Check the logs in a new process. Raises RuntimeError where it ends with an error."""
    options = {"round": round_name, "ruleset": ruleset, "paths": [str(path) for path in paths]}
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:  # mlperf_logging writes a log where it runs
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(checker=checker)],
            input=json.dumps(options),  # as an argument, many paths would be too long
            cwd=folder, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr)
    return Turn(**json.loads(done.stdout.splitlines()[-1]))


def describe_row(row: str, megabytes: float, taken: Mapping[str, Sequence[Turn]]) -> str:
    """Return the lines that tell how fast each checker was on one row, and the ratios."""
    lines = [f"{row} ({megabytes:.2f} MB)"]
    for name, turns in taken.items():
        processor = describe_spread([megabytes / turn.processor for turn in turns])
        wall = describe_spread([megabytes / turn.wall for turn in turns])
        start = statistics.median(turn.start for turn in turns)
        mib = statistics.median(turn.mib for turn in turns)
        failed = f", failed at {turns[0].failed:,} logs" if turns[0].failed else ""
        lines.append(
            f"  {name:14} {processor} MB/s of processor time, {wall} MB/s of wall time, "
            f"start {start:.2f} s, peak {mib:.0f} MiB{failed}"
        )
    ours, theirs = taken.values()
    pairs = list(zip(ours, theirs, strict=True))
    processor, wall = (
        describe_ratio([(getattr(a, clock), getattr(b, clock)) for a, b in pairs])
        for clock in ("processor", "wall")
    )
    lines.append(f"  ratio          {processor} in processor time, {wall} in wall time")
    return "\n".join(lines)


def describe_ratio(pairs: Sequence[tuple[float, float]]) -> str:
    """Return the ratio of the medians of their seconds to ours, with the spread of the turns."""
    ours, theirs = (statistics.median(seconds) for seconds in zip(*pairs, strict=True))
    ratios = [b / a for a, b in pairs]
    return f"{theirs / ours:.1f} ({min(ratios):.1f} to {max(ratios):.1f})"


def describe_spread(values: Sequence[float], digits: int = 1) -> str:
    """Return the median with the lowest and the highest value in brackets."""
    low, high = min(values), max(values)
    return f"{statistics.median(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def _measure_one_log(log: Path, round_name: str) -> float:
    started = time.perf_counter()
    _run_check(["--round", round_name, str(log)])
    return time.perf_counter() - started


def _measure_jobs(logs: Sequence[Path], count: int, round_name: str) -> None:
    """Check copies of the logs, in results of five, with more and more processes."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            name = f"results/system{number // 50}/b{number // 5}-full-closed"
            target = Path(folder) / name / f"result_{number % 5}.txt"
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(logs[number % len(logs)], target)
        common = ["--round", round_name, folder, "--output", f"{folder}/findings.txt"]
        first = 0.0
        for jobs in sorted({1, 2, usable_processors()}):
            started = time.perf_counter()
            _run_check([*common, "--jobs", str(jobs)])
            seconds = time.perf_counter() - started
            first = first or seconds
            print(f"{count:,} logs, --jobs {jobs}: {seconds:.2f} s, {first / seconds:.2f} times")


def _run_check(arguments: Sequence[str]) -> None:
    program = str(ROOT / "tools" / "check_compliance.py")
    done = subprocess.run([sys.executable, program, *arguments], capture_output=True, check=False)
    if done.returncode not in (0, 1):  # these logs may have findings
        raise RuntimeError(done.stderr.decode())


if __name__ == "__main__":
    run_tool(main)
