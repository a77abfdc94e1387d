"""The same broken logs are given to mlcommons' checker: where it judges otherwise, we know why."""

import contextlib
import io
import logging
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cepheid.compliance.finding import has_error
from tests.compliance.checks.test_mlperf import CASES_06, CASES_40, HPC, V06, Case, check
from tests.compliance.history import Entry, mll_lines, mllog_lines, resnet_40

CLOSED, OPEN, SGD = resnet_40(), resnet_40(division="open"), resnet_40(optimizer="sgd")

# What we refuse and the peer accepts, by the rules that are not the peer's.
OURS_ALONE = {
    "T3": "it does not look at what follows run_stop",
    "T4": "it does not compare times",
    "T5": "it compares NaN, which is neither good nor bad",
    "T17": "it asks for a status, not for success, where no target is set (open) or one is reached",
    "M5": "it does not ask whether a run took any time",
    "M6": "it stops looking, or raises TypeError, at a quality that is no number",
    "M2": "it takes true and false for the numbers 1 and 0",
}


@pytest.fixture(scope="module")
def peer() -> ModuleType:
    module: ModuleType = pytest.importorskip("mlperf_logging.compliance_checker.mlp_compliance")
    return module


def peers_verdict(peer: ModuleType, log: Path, round_name: str) -> str:
    """SUCCESS, FAILED or CRASH."""
    _, usage, version = round_name.split("-")
    peer.enqueued_configs.clear()  # a crash leaves some behind
    checker = peer.make_checker(usage, f"{version}.0", True, False)
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            config = f"{usage}_{version}.0/common.yaml"
            return "SUCCESS" if peer.main(str(log), config, checker)[0] else "FAILED"
    except Exception:  # whatever it raises is what this is about
        return "CRASH"
    finally:
        logging.disable(logging.NOTSET)


def lines_of(entries: Sequence[Entry], round_name: str) -> list[str]:
    return mll_lines(entries) if round_name.endswith("0.6") else mllog_lines(entries)


@pytest.mark.parametrize(
    ("round_name", "case"),
    [("mlperf-training-4.0", case) for case in CASES_40]
    + [("mlperf-training-0.6", case) for case in CASES_06],
    ids=lambda value: value.name if isinstance(value, Case) else value,
)
def test_the_catalogue(peer: ModuleType, round_name: str, case: Case, tmp_path: Path) -> None:
    found = check(lines_of(case.entries, round_name), round_name, tmp_path)
    ours = "FAILED" if has_error(found) else "SUCCESS"
    theirs = peers_verdict(peer, tmp_path / "result_0.txt", round_name)
    if theirs != ours:
        assert (theirs != "FAILED", ours) == (True, "FAILED")  # a crash is no verdict
        assert {finding.rule for finding in found if finding.is_error} <= OURS_ALONE.keys()


VALUES: tuple[Any, ...] = (
    None, True, 0, 1, -1, 0.5, "", "x", "sgd", "lars", "open", "closed", "gnmt", "mask", [], [1],
    {}, 0.0001, 0.0002, 0.9, 1e-6, "cloud", "preview", 10**6,
)  # fmt: skip
METADATA = ("epoch_num", "first_epoch_num", "samples_count", "epoch_count", "status")


def mutate(entries: Sequence[Entry], chance: random.Random) -> list[Entry]:
    """The log with one or two changes of any kind."""
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


@pytest.mark.parametrize("seed", range(300))
def test_any_change(peer: ModuleType, seed: int, tmp_path: Path) -> None:
    """300 of the 15,000 logs that were compared once; ours is never the milder one."""
    chance = random.Random(seed)
    round_name, entries = chance.choice(
        [
            ("mlperf-training-4.0", CLOSED),
            ("mlperf-training-4.0", OPEN),
            ("mlperf-training-4.0", SGD),
            ("mlperf-training-0.6", V06),
            ("mlperf-hpc-2.0", HPC),
        ]
    )
    found = check(lines_of(mutate(entries, chance), round_name), round_name, tmp_path)
    theirs = peers_verdict(peer, tmp_path / "result_0.txt", round_name)
    if not has_error(found):
        assert theirs == "SUCCESS"
    elif theirs == "SUCCESS":
        assert {finding.rule for finding in found if finding.is_error} <= OURS_ALONE.keys()
