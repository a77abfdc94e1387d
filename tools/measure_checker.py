"""How fast the checker is, beside mlcommons' own: python tools/measure_checker.py LOG_OR_FOLDER…

Each side checks all logs in a process of its own, in turns; what a process needs to start and to
import is not counted. Shown are medians, of wall and of processor time. Needs mlperf-logging.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

if __package__ in (None, ""):  # run as a file of a checkout that is not installed
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from rules import rounds
from rules.definition import ROOT
from rules.errors import UserError
from rules.host import usable_processors
from tools.cli import EXIT_FINE, run_tool

OURS = """
import gc
from pathlib import Path
from compliance import runlog
from compliance.checks import Place, check_log
from rules import rounds
from tools.check_compliance import GARBAGE_OBJECTS
gc.set_threshold(GARBAGE_OBJECTS)
judged_in, paths = rounds.load(options["round"]), [Path(path) for path in options["paths"]]
def check():
    for path in paths:
        check_log(runlog.read(path), Place(judged_in.name), judged_in)
"""
PEER = """
import logging
from mlperf_logging.compliance_checker import mlp_compliance
logging.disable(logging.CRITICAL)
def check():
    for path in options["paths"]:
        checker = mlp_compliance.make_checker("training", options["ruleset"], True, False)
        mlp_compliance.main(path, f"training_{options['ruleset']}/common.yaml", checker)
"""
MEASURE = """
import contextlib, io, json, os, resource, sys, time
options = json.loads(sys.argv[1])
{checker}
wall, processor = time.perf_counter(), time.process_time()
with contextlib.redirect_stdout(io.StringIO()):
    check()
took = [time.perf_counter() - wall, time.process_time() - processor]
print(json.dumps([*took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("paths", nargs="+", type=Path, metavar="LOG_OR_FOLDER")
    add("--round", default=rounds.CURRENT, help=f"our rules (default: {rounds.CURRENT})")
    add("--ruleset", default="4.0.0", help="the peer's rules (default: 4.0.0)")
    add("--repeats", type=int, default=7, help="turns of each side (default: 7)")
    add("--logs", type=int, default=2000, help="copies for --jobs, 0 for none (default: 2000)")
    arguments = parser.parse_args(argv)
    logs = [log for path in arguments.paths for log in _logs(path)]
    if not logs:
        raise UserError(f"{arguments.paths[0]}: no result_<k>.txt there")
    rounds.load(arguments.round)
    megabytes = sum(log.stat().st_size for log in logs) / 1e6
    print(f"{len(logs)} logs, {megabytes:.2f} MB; {arguments.repeats} turns; medians")
    options = {
        "round": arguments.round,
        "ruleset": arguments.ruleset,
        "paths": [str(log.resolve()) for log in logs],
    }
    _compare(options, megabytes, arguments.repeats)
    _cold_start(logs[0], arguments.round, arguments.repeats)
    if arguments.logs:
        _processes(logs, arguments.logs, arguments.round)
    return EXIT_FINE


def _logs(path: Path) -> list[Path]:
    return sorted(path.rglob("result_*.txt")) if path.is_dir() else [path]


def _compare(options: dict[str, object], megabytes: float, repeats: int) -> None:
    taken: dict[str, list[list[float]]] = {"cepheid": [], "mlperf_logging": []}
    for _ in range(repeats):
        for name, checker in (("cepheid", OURS), ("mlperf_logging", PEER)):
            code = MEASURE.format(checker=checker)
            try:
                taken[name].append(json.loads(_python("-c", code, json.dumps(options))))
            except RuntimeError as error:
                if checker is OURS:
                    raise
                print(f"{name} cannot check these logs: {str(error).splitlines()[-1]}")
                return
    medians = {}
    for name, turns in taken.items():
        wall, processor, mib = (statistics.median(column) for column in zip(*turns, strict=True))
        medians[name] = wall, processor
        print(
            f"{name:>15}: {megabytes / wall:7.2f} MB/s of wall time, "
            f"{megabytes / processor:7.2f} MB/s of processor time, peak {mib:.0f} MiB"
        )
    wall, processor = (b / a for a, b in zip(*medians.values(), strict=True))
    print(f"          ratio: {wall:7.1f} in wall time, {processor:.1f} in processor time")


def _cold_start(log: Path, round_name: str, repeats: int) -> None:
    taken = []
    for _ in range(repeats):
        started = time.perf_counter()
        _check(["--round", round_name, str(log)])
        taken.append(time.perf_counter() - started)
    print(f"one log, from the start of the process: {statistics.median(taken):.3f} s")


def _processes(logs: Sequence[Path], count: int, round_name: str) -> None:
    """Copies of the logs, in results of five, judged by more and more processes."""
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            name = f"results/system{number // 50}/b{number // 5}-full-closed"
            (Path(folder) / name).mkdir(parents=True, exist_ok=True)
            target = Path(folder) / name / f"result_{number % 5}.txt"
            shutil.copyfile(logs[number % len(logs)], target)
        first = 0.0
        for jobs in sorted({1, 2, usable_processors()}):
            started = time.perf_counter()
            _check(
                [
                    "--round",
                    round_name,
                    "--jobs",
                    str(jobs),
                    folder,
                    "--output",
                    f"{folder}/findings.txt",
                ]
            )
            seconds = time.perf_counter() - started
            first = first or seconds
            print(f"{count:,} logs, --jobs {jobs}: {seconds:.2f} s, {first / seconds:.2f} times")


def _check(arguments: Sequence[str]) -> None:
    program = str(ROOT / "tools" / "check_compliance.py")
    done = subprocess.run([sys.executable, program, *arguments], capture_output=True, check=False)
    if done.returncode not in (0, 1):  # these logs may have findings
        raise RuntimeError(done.stderr.decode())


def _python(*arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:  # the peer leaves a log where it runs
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=folder, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout.splitlines()[-1]


if __name__ == "__main__":
    run_tool(main)
