"""Fuzzing of the checker: python tests/fuzz_runlog.py --count 1000000 --seed 1 [LOG …]

Each input is a run log with random changes (tests/compliance/mutations.py). It is parsed and
checked, in turn by every round's rules and as if it lay in several folders; one in a hundred is
reported in every format. An input fails where that raises, takes longer than --seconds, or needs
more memory than --memory-mib; it is then kept under --keep. The corpus is the given LOGs and logs
that the tests build: excerpts of them, and for one input in a hundred the whole log.
"""

import argparse
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from cepheid.rules import definition
from tests.compliance.builder import line_of, run_records
from tests.compliance.mutations import PATHS, PLACES, Lines, excerpt, judge, mutate

REPORT_SECONDS = 30


class _TooSlow(BaseException):  # no Exception, so that nothing under test can catch it
    pass


def main() -> int:
    """Exit code 1 where an input brought the checker down."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("logs", nargs="*", type=Path, metavar="LOG")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=10.0, help="for one input (default: 10)")
    parser.add_argument(
        "--memory-mib", type=int, default=1024, help="of the process (default: 1024)"
    )
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"), metavar="DIR")
    arguments = parser.parse_args()
    bytes_max = arguments.memory_mib * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (bytes_max, bytes_max))
    signal.signal(signal.SIGALRM, _too_slow)
    small, whole = _corpus(arguments.logs, random.Random(arguments.seed))
    failures, findings, slowest = 0, 0, 0.0
    started = told = time.monotonic()
    for number in range(arguments.count):
        chance = random.Random(f"{arguments.seed}/{number}")
        is_hundredth = number % 100 == 99
        content = b""
        signal.setitimer(signal.ITIMER_REAL, arguments.seconds)
        before = time.monotonic()
        try:
            content = mutate(chance, whole if is_hundredth else small)
            path, place = chance.choice(PATHS), PLACES[number % len(PLACES)]
            findings += judge(content, path, place, reported=is_hundredth)
        except (Exception, _TooSlow):
            failures += 1
            _keep(arguments.keep, arguments.seed, number, content)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        now = time.monotonic()
        slowest = max(slowest, now - before)
        if now - told > REPORT_SECONDS or number + 1 == arguments.count:
            told = now
            mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(
                f"{number + 1:,} inputs, {findings:,} findings, {failures} failures, "
                f"{(number + 1) / (now - started):,.0f}/s, slowest {slowest:.2f} s, "
                f"peak {mib:.0f} MiB",
                flush=True,
            )
    return 1 if failures else 0


def _corpus(logs: Sequence[Path], chance: random.Random) -> tuple[list[Lines], list[Lines]]:
    whole = [path.read_bytes().split(b"\n") for path in logs]
    small = [excerpt(chance, lines, 6) for lines in whole if any(b":::MLL" in x for x in lines)]
    built = list(_build_corpus())
    return small + built, whole + built


def _build_corpus() -> Iterator[Lines]:
    for name in definition.names():
        loaded = definition.load(name, "mini")
        for blocks, converged in ((1, True), (2, True), (2, False)):
            records = run_records(loaded, blocks=blocks, converged=converged)
            yield [line_of(record).encode() for record in records]


def _keep(folder: Path, seed: int, number: int, content: bytes) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / f"seed-{seed}-input-{number}.txt"
    path.write_bytes(content)
    print(f"input {number} failed and is kept as {path}:", flush=True)
    traceback.print_exc(limit=-4)


def _too_slow(*_: object) -> None:
    raise _TooSlow


if __name__ == "__main__":
    sys.exit(main())
