"""Measure how many times as fast ``cepheid check`` is as the peer, in processor time.

Both judge the same logs of a round, one by one, in turns and in this process. What starting costs
is left out: each judges all of them once before, and the command line is parsed. The logs are drawn
at random with a fixed seed.
The numbers are recorded beside the agreement, whose table shows them.
"""

import contextlib
import io
import logging
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from cepheid.compliance.read import package
from cepheid.rules import rounds
from cepheid.rules.mlperf.rule_files import require_rule_set
from cepheid.tools import check_compliance
from cepheid.tools.peer.agreement import (
    RECORD,
    SEED,
    SPEED,
    Compared,
    add_to_record,
    find_repositories,
    read_record,
    require_repositories,
)
from cepheid.tools.peer.asked import judge_log

LOGS, TURNS = 20, 3


def measure_rounds() -> str:
    """Measure the rounds of which nothing is recorded, and return all numbers as lines."""
    folder = require_repositories()
    record = folder / RECORD
    known = [each for each in read_record(record) if each.kind == SPEED]
    for name, repository in find_repositories(folder).items():
        if name not in {each.round for each in known}:
            known.append(measure_round(name, draw_logs(name, repository)))
            add_to_record(record, known[-1:])
    return "\n".join(f"{each.round:24}{each.we_say}" for each in known)


def draw_logs(name: str, repository: Path, number: int = LOGS) -> Sequence[Path]:
    """Draw logs of a round at random, with a fixed seed."""
    listed = package.read(repository, rounds.load(name).layout)
    logs = sorted(log for who in listed.submitters for one in who.results for log in one.runs)
    return random.Random(SEED).sample(logs, min(number, len(logs)))


def measure_round(name: str, logs: Sequence[Path], turns: int = TURNS) -> Compared:
    """Measure both on the same logs, and return milliseconds of both and the ratio."""
    rule_set = require_rule_set(name)
    command = check_compliance.COMMAND.parse(["--round", name, "--jobs", "1", *map(str, logs)])

    def judge_theirs() -> None:
        for log in logs:
            judge_log(log, rule_set)

    with _silence():
        pairs = [
            (_clock(lambda: check_compliance.check(command)), _clock(judge_theirs))
            for _ in range(turns + 1)
        ][1:]
    ours, theirs = (1000 * statistics.median(each) / len(logs) for each in zip(*pairs, strict=True))
    ratios = sorted(b / a for a, b in pairs)
    says = (
        f"{theirs / ours:.1f} times ({ratios[0]:.1f} to {ratios[-1]:.1f}) on {len(logs)} logs: "
        f"{ours:.2f} and {theirs:.1f} ms of each"
    )
    return Compared(name, SPEED, f"{len(logs)} logs", f"{theirs:.3f}", f"{ours:.4f}", we_say=says)


def _clock(function: Callable[[], object]) -> float:
    started = time.process_time()
    function()
    return time.process_time() - started


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Print nothing, and let the peer log nothing, which would only cost it time."""
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)
