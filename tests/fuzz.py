"""Fuzzing: python tests/fuzz.py logs --count 1000000 --seed 1 [LOG …], or submissions --count 10000

logs: Each input is a run log with random changes (tests/compliance/mutations.py). It is parsed and
checked, in turn by every round's rules and as if it lay in several folders; one in a hundred is
reported in every format. An input fails where that raises, takes longer than --seconds, or needs
more memory than --memory-mib; it is then kept under --keep. The corpus is the given LOGs and logs
that the tests build: excerpts of them, and for one input in a hundred the whole log.

submissions: Each input is a submission with random damage (tests/compliance/hostile.py) beside
another one that stays as it is. Every command that reads submissions is run on it. An input fails
where one of them raises, shows a bug, or says anything else of the other submission.
"""

import argparse
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import pytest

from cepheid.rules import definition
from tests.compliance import hostile, small
from tests.compliance.builder import line_of, run_records
from tests.compliance.mutations import PATHS, PLACES, Lines, excerpt, judge, mutate

REPORT_SECONDS = 30


class _TooSlow(BaseException):  # no Exception, so that nothing under test can catch it
    pass


def main() -> int:
    """Fuzz; return 1 where an input brought something down."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=["logs", "submissions"])
    parser.add_argument("logs", nargs="*", type=Path, metavar="LOG")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=10.0, help="for one log (default: 10)")
    parser.add_argument(
        "--memory-mib", type=int, default=1024, help="of the process for logs (default: 1024)"
    )
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"), metavar="DIR")
    arguments = parser.parse_args()
    if arguments.what == "logs":
        return try_inputs(arguments, prepare_logs(arguments))
    with tempfile.TemporaryDirectory() as work, pytest.MonkeyPatch.context() as patched:
        bench = hostile.make_bench(Path(work), small.install(Path(work) / "benchmarks", patched))
        return try_inputs(arguments, lambda chance, _: len(hostile.try_damage(bench, chance)))


def try_inputs(arguments: argparse.Namespace, attempt: Callable[[random.Random, int], int]) -> int:
    """Try input after input; return 1 where one failed. An attempt returns what it found."""
    failures, findings, slowest = 0, 0, 0.0
    started = told = time.monotonic()
    for done in range(1, arguments.count + 1):
        number = arguments.first + done - 1
        before = time.monotonic()
        try:
            findings += attempt(random.Random(f"{arguments.seed}/{number}"), number)
        except (Exception, _TooSlow):
            failures += 1
            print(f"input {number} of seed {arguments.seed} failed:", flush=True)
            traceback.print_exc(limit=-5)
        now = time.monotonic()
        slowest = max(slowest, now - before)
        if now - told > REPORT_SECONDS or done == arguments.count:
            told, rate = now, done / (now - started)
            mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(
                f"{done:,} inputs, {findings:,} findings, {failures} failures, {rate:,.1f}/s, "
                f"slowest {slowest:.2f} s, peak {mib:.0f} MiB",
                flush=True,
            )
    return 1 if failures else 0


def prepare_logs(arguments: argparse.Namespace) -> Callable[[random.Random, int], int]:
    """Return what tries one changed log, within the limits of time and memory."""
    bytes_max = arguments.memory_mib * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (bytes_max, bytes_max))
    signal.signal(signal.SIGALRM, _stop)
    excerpts, whole = _collect_logs(arguments.logs, random.Random(arguments.seed))

    def attempt(chance: random.Random, number: int) -> int:
        is_hundredth = number % 100 == 99
        content = b""
        signal.setitimer(signal.ITIMER_REAL, arguments.seconds)
        try:
            content = mutate(chance, whole if is_hundredth else excerpts)
            path, place = chance.choice(PATHS), PLACES[number % len(PLACES)]
            return judge(content, path, place, reported=is_hundredth)
        except BaseException:
            arguments.keep.mkdir(exist_ok=True)
            name = f"seed-{arguments.seed}-input-{number}.txt"
            (arguments.keep / name).write_bytes(content)
            raise
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    return attempt


def _collect_logs(logs: Sequence[Path], chance: random.Random) -> tuple[list[Lines], list[Lines]]:
    """Return excerpts of logs, and whole logs."""
    whole = [path.read_bytes().split(b"\n") for path in logs]
    short = [excerpt(chance, lines, 6) for lines in whole if any(b":::MLL" in x for x in lines)]
    built = list(_build_logs())
    return short + built, whole + built


def _build_logs() -> Iterator[Lines]:
    for name in definition.names():
        loaded = definition.load(name, "mini")
        for blocks, converged in ((1, True), (2, True), (2, False)):
            records = run_records(loaded, blocks=blocks, converged=converged)
            yield [line_of(record).encode() for record in records]


def _stop(*_: object) -> None:
    raise _TooSlow


if __name__ == "__main__":
    sys.exit(main())
