"""Judging in several processes: the same answers in the same order, and failures are told."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from cepheid.compliance.checks import Place
from cepheid.compliance.judge.judgement import judge
from cepheid.compliance.judge.unit import Each, JudgedUnit, Unit, use_processes
from cepheid.compliance.read import package
from cepheid.rules import definition, rounds
from tests.compliance.builder import SYSTEM, put, run_records, write_log, write_result
from tests.processes import have_ended, kill_after_a_line

ROUND = rounds.load(rounds.CURRENT)
MINI = definition.load("galaxy_shape", "mini")
PLACE = Place(rounds.CURRENT)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six systems; every other one has a log that breaks a rule."""
    for number in range(6):
        system = {**SYSTEM, "system": f"box{number}"}
        results = write_result(tmp_path, MINI, runs=2, system=system)
        if number % 2:
            records = run_records(MINI, 1, system=system)
            broken = put(records, "opt_name", value="sgd")
            write_log(results / "result_1.txt", broken)
    return tmp_path


def test_any_number_of_processes_finds_the_same_in_the_same_order(folder: Path) -> None:
    found = [
        judge([package.read(folder)], ROUND, each).findings
        for each in (map, use_processes(1), use_processes(2), use_processes(5))
    ]
    assert found[0] == found[1] == found[2] == found[3]
    assert [f.rule for f in found[0] if f.is_error] == ["T12"] * 3


def test_progress_counts_logs(folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    judge([package.read(folder)], ROUND, use_processes(2, lambda *counts: seen.append(counts)))
    assert seen == [(done, 12) for done in range(2, 13, 2)]


def raise_error(unit: Unit) -> JudgedUnit:
    raise ZeroDivisionError("our bug")


def die(unit: Unit) -> JudgedUnit:
    os._exit(1)


@pytest.mark.parametrize("function", [raise_error, die])
def test_a_failure_in_a_process_is_a_failure_here(folder: Path, function: object) -> None:
    each: Each = use_processes(2)
    units = [
        Unit(result, replace(PLACE, system=result.system), ROUND)
        for who in package.read(folder).submitters
        for result in who.results
    ]
    with pytest.raises(Exception, match=r"our bug|terminated abruptly"):
        list(each(function, units))  # type: ignore[arg-type]


def test_processes_end_with_a_killed_command() -> None:
    script = (
        "import time\nfrom cepheid.compliance.judge.unit import _map_in_pool\n"
        "if __name__ == '__main__':\n    answers = iter(_map_in_pool(time.sleep, [0, 0], 2))\n"
        "    next(answers)\n    print('begun', flush=True)\n    time.sleep(60)\n"
    )
    _, made = kill_after_a_line(script)
    assert len(made) == 2
    assert have_ended(made)
