"""Fuzzing of all commands: python tests/fuzz_submission.py --count 10000 --seed 1

Each input is a submission with random damage (tests/compliance/hostile.py) beside another one that
stays as it is. Every command that reads submissions is run on it. An input fails where one of them
raises, shows a bug, or says anything else of the other submission; its number is printed.
"""

import argparse
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import pytest

from tests.compliance import hostile, small

REPORT_SECONDS = 30


def main() -> int:
    """Exit code 1 where an input brought a command down."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1_000)
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    failures, slowest = 0, 0.0
    with tempfile.TemporaryDirectory() as work, pytest.MonkeyPatch.context() as patched:
        bench = hostile.make_bench(Path(work), small.install(Path(work) / "benchmarks", patched))
        started = told = time.monotonic()
        for done in range(1, arguments.count + 1):
            number = arguments.first + done - 1
            before = time.monotonic()
            try:
                hostile.try_damage(bench, random.Random(f"{arguments.seed}/{number}"))
            except Exception:
                failures += 1
                print(f"input {number} of seed {arguments.seed} failed:", flush=True)
                traceback.print_exc(limit=-5)
            now = time.monotonic()
            slowest = max(slowest, now - before)
            if now - told > REPORT_SECONDS or done == arguments.count:
                told, rate = now, done / (now - started)
                print(
                    f"{done:,} inputs, {failures} failures, {rate:.1f}/s, slowest {slowest:.1f} s",
                    flush=True,
                )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
