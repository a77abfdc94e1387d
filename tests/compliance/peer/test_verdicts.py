"""The same logs are given to mlcommons' checker, and to its rules as we evaluate them."""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cepheid.compliance.checks.mlperf.verdict import find_breaches
from cepheid.compliance.read.log import runlog
from cepheid.rules.mlperf.rule_files import require_rule_set
from cepheid.tools.peer.asked import judge_log
from tests.compliance.checks.test_mlperf import CASES_06, CASES_40, HPC, V06, Case
from tests.compliance.history import Entry, mll_lines, mllog_lines, resnet_40, write

pytest.importorskip("mlperf_logging", reason="the peer is in the extra test")

CLOSED, OPEN, SGD = resnet_40(), resnet_40(division="open"), resnet_40(optimizer="sgd")


def by_mlcommons(log: Path, round_name: str) -> str:
    """The verdict of mlcommons' rules as we evaluate them; a crash is no verdict."""
    run, rule_set = runlog.read(log), require_rule_set(round_name)
    breaches = [found for found in find_breaches(run, rule_set) if found.kind != "equal"]
    return "FAILED" if breaches or run.has_lost_records else "SUCCESS"


def compare(entries: Sequence[Entry], round_name: str, folder: Path) -> None:
    as_lines = mll_lines if round_name.endswith("0.6") else mllog_lines
    log = write(folder / "result_0.txt", as_lines(entries))
    theirs = judge_log(log, require_rule_set(round_name)).verdict.replace("CRASH", "FAILED")
    assert by_mlcommons(log, round_name) == theirs


@pytest.mark.parametrize("case", [*CASES_40, *CASES_06], ids=lambda case: case.name)
def test_the_catalogue(case: Case, tmp_path: Path) -> None:
    name = "mlperf-training-4.0" if case in CASES_40 else "mlperf-training-0.6"
    compare(case.entries, name, tmp_path)


VALUES: tuple[Any, ...] = (
    None, True, 0, 1, -1, 0.5, "", "x", "sgd", "lars", "open", "closed", "gnmt", "mask", [], [1],
    {}, 0.0001, 0.0002, 0.9, 1e-6, "cloud", "preview", 10**6,
)  # fmt: skip
METADATA = ("epoch_num", "first_epoch_num", "samples_count", "epoch_count", "status")


def mutate(entries: Sequence[Entry], chance: random.Random) -> list[Entry]:
    made = list(entries)
    for _ in range(chance.choice((1, 1, 2))):
        at, kind = chance.randrange(len(made)), chance.randrange(6)
        if kind == 0:
            del made[at]
        elif kind == 1:
            made[at] = replace(made[at], value=chance.choice(VALUES))
        elif kind == 2:
            made.insert(chance.randrange(len(made)), made[at])
        elif kind == 3:
            made.insert(chance.randrange(len(made)), made.pop(at))
        elif kind == 4:
            made[at] = made[at].having(**{chance.choice(METADATA): chance.choice((None, 0, 2, 3))})
        else:
            made[at] = replace(made[at], after_ms=60_000 * chance.choice((0, 19, 21, 31, 241)))
    return made


ROUNDS = [
    ("mlperf-training-4.0", CLOSED), ("mlperf-training-4.0", OPEN), ("mlperf-training-4.0", SGD),
    ("mlperf-training-0.6", V06), ("mlperf-hpc-2.0", HPC),
]  # fmt: skip


@pytest.mark.parametrize(
    "seed", [*range(100), *(pytest.param(n, marks=pytest.mark.slow) for n in range(100, 300))]
)
def test_any_change(seed: int, tmp_path: Path) -> None:
    """A log with any change gets the verdict of the peer, in rounds of three kinds."""
    chance = random.Random(seed)
    round_name, entries = chance.choice(ROUNDS)
    compare(mutate(entries, chance), round_name, tmp_path)
