"""Runs that were set aside, and seeds that were chosen: planted cheats of rule T15."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from cepheid.compliance.finding import Finding
from cepheid.compliance.judge.judgement import judge
from cepheid.compliance.read import package
from cepheid.rules import definition, rounds
from cepheid.rules.digests import derive_seed
from tests.compliance.builder import (
    CODE_DIGEST,
    Record,
    edit,
    generation_records,
    line_number,
    run_records,
    write_log,
    write_result,
)

pytestmark = pytest.mark.usefixtures("fast_reference")

MINI = definition.load("galaxy_shape", "mini")
IMAGES = definition.load("galaxy_generation", "mini")
ROUND = rounds.load("v1.0")


def find_all(root: Path) -> list[Finding]:
    return list(judge([package.read(root)], ROUND).findings)


def cut(records: list[Record], lines: int) -> list[Record]:
    return records[:-lines]


def give(seed: int, records: list[Record]) -> list[Record]:
    def change(record: Record) -> None:
        record["value"] = seed
        record["metadata"]["origin"] = "given"

    return edit(records, "seed", change)


def not_finite(records: list[Record]) -> list[Record]:
    return edit(
        records, "run_stop", lambda r: r["metadata"].update(reason="the loss is not finite")
    )


SET_ASIDE: dict[str, tuple[str, list[Record]]] = {
    "only run_stop is cut off": ("T15.set_aside", cut(run_records(MINI, 2), 1)),
    "run_stop and eval_stop are cut off": ("T15.set_aside", cut(run_records(MINI, 2), 2)),
    "a run that failed after the targets held": (
        "T15.set_aside", [*run_records(MINI, 2)[:-1], run_records(MINI, 2, converged=False)[-1]]),
    "a spent budget without run_stop": (
        "T15.set_aside", cut(run_records(MINI, 2, blocks=1000, converged=False), 1)),
    "a run that was slower than its repeat": (
        "T15.set_aside", cut(run_records(MINI, 2, blocks=5, converged=False), 1)),
    "a run that diverged": (
        "T15.set_aside", not_finite(run_records(MINI, 2, blocks=2, converged=False))),
    "another seed, not repeated": (
        "T15.other_seed", cut(run_records(MINI, 17, blocks=2, converged=False), 1)),
    "another given seed, not repeated": (
        "T15.other_seed", give(4711, run_records(MINI, 2, blocks=2, converged=False))),
}  # fmt: skip


@pytest.mark.parametrize("name", SET_ASIDE)
def test_what_was_set_aside_is_judged_as_if_it_counted(name: str, tmp_path: Path) -> None:
    code, records = SET_ASIDE[name]
    folder = write_result(tmp_path, MINI)
    write_log(folder / "interrupted_result_2_0.txt", records)
    (found,) = [finding for finding in find_all(tmp_path) if finding.is_error]
    assert (found.code, found.path.name) == (code, "interrupted_result_2_0.txt")
    assert found.got
    assert found.hint


def test_generation_without_run_stop_was_completed(tmp_path: Path) -> None:
    folder = write_result(tmp_path, IMAGES)
    write_log(folder / "interrupted_0.txt", cut(generation_records(IMAGES, 1), 1))
    (found,) = [finding for finding in find_all(tmp_path) if finding.is_error]
    assert found.code == "T15.set_aside"


@dataclass(frozen=True)
class Seeds:
    """Which seed each run is given, None for its derived one."""

    code: str
    of: Callable[[int], int | None]
    runs: int


derived = partial(derive_seed, MINI.digest, "box", CODE_DIGEST)
SEEDS = {
    "the best five of forty": Seeds("T15.chosen", lambda k: derived(7 * k + 6), 5),
    "one of many among others": Seeds("T15.chosen", lambda k: derived(39) if k == 3 else k, 1),
    "the derived ones in another order": Seeds("T15.chosen", lambda k: derived((k + 1) % 5), 5),
    "plus a multiple of 2**32": Seeds("T15.chosen", lambda k: derived(k + 9) + 2**32, 5),
    "one derived seed set aside": Seeds("T15.mixed", lambda k: 7 if k == 2 else None, 1),
}


@pytest.mark.parametrize("name", SEEDS)
def test_seeds_that_were_chosen(name: str, tmp_path: Path) -> None:
    planted = SEEDS[name]
    folder = write_result(tmp_path, MINI)
    for index in range(MINI.runs.required):
        seed = planted.of(index)
        if seed is not None:
            records = give(seed, run_records(MINI, index))
            write_log(folder / f"result_{index}.txt", records)
    found = [finding for finding in find_all(tmp_path) if finding.is_error]
    assert [finding.code for finding in found] == [planted.code] * planted.runs, found
    assert found[0].line == line_number(run_records(MINI), "seed")
    assert found[0].hint


def test_honest_interruptions_are_notes(tmp_path: Path) -> None:
    """A run that was interrupted early, one by an older program, one before the clock."""
    folder = write_result(tmp_path, MINI)
    write_log(folder / "interrupted_0.txt", cut(run_records(MINI, 3, blocks=2, converged=False), 1))
    older = edit(run_records(MINI, 17), "code_digest", lambda r: r.update(value="0" * 64))
    write_log(folder / "interrupted_1.txt", older[: line_number(older, "eval_start", 1)])
    write_log(folder / "interrupted_2.txt", older[: line_number(older, "init_stop")])
    assert [finding.code for finding in find_all(tmp_path)] == ["S1.interrupted"]
