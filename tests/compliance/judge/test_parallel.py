"""Judging in several processes: the same answers in the same order, and failures are told."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from compliance.checks import Place
from compliance.finding import Finding
from compliance.judge.judgement import Each, Unit, judge
from compliance.judge.parallel import judging
from compliance.read import package
from rules import definition, rounds
from tests.compliance.builder import SYSTEM, edited, run_records, write_log, write_result

ROUND = rounds.load(rounds.CURRENT)
MINI = definition.load("galaxy_shape", "mini")
PLACE = Place(rounds.CURRENT)


def silent(done: int, total: int) -> None:
    pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six systems; every other one has a log that breaks a rule."""
    for number in range(6):
        system = {**SYSTEM, "system": f"box{number}"}
        results = write_result(tmp_path, MINI, runs=2, system=system)
        if number % 2:
            records = run_records(MINI, 1, system=system)
            broken = edited(records, "opt_name", lambda record: record.update(value="sgd"))
            write_log(results / "result_1.txt", broken)
    return tmp_path


def test_any_number_of_processes_finds_the_same_in_the_same_order(folder: Path) -> None:
    found = [
        judge([package.read(folder)], ROUND, each).findings
        for each in (map, judging(1, silent), judging(2, silent), judging(5, silent))
    ]
    assert found[0] == found[1] == found[2] == found[3]
    assert [f.rule for f in found[0] if f.is_error] == ["T12"] * 3


def test_progress_counts_logs(folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    judge([package.read(folder)], ROUND, judging(2, lambda *counts: seen.append(counts)))
    assert seen == [(done, 12) for done in range(2, 13, 2)]


def test_no_log_is_kept(folder: Path) -> None:
    """2,000 logs must not be in memory together."""
    (power,) = {log.with_name("power_0.csv") for log in folder.rglob("box0/*/result_0.txt")}
    power.write_text("# not measured: nothing\nmonotonic_ms,node0\n0,1\n")
    read = package.read(folder)
    judge([read], ROUND, judging(1, silent))
    results = [result for who in read.submitters for result in who.results]
    kept: list[Any] = [logs for result in results for logs in (result.runs, result.power)]
    assert sum(map(len, kept)) == 13
    assert all(log is None for logs in kept for log in logs._read)


def raising(unit: Unit) -> list[Finding]:
    raise ZeroDivisionError("our bug")


def dying(unit: Unit) -> list[Finding]:
    os._exit(1)


@pytest.mark.parametrize("function", [raising, dying])
def test_a_failure_in_a_process_is_a_failure_here(folder: Path, function: object) -> None:
    each: Each = judging(2, silent)
    units = [
        Unit(result, replace(PLACE, system=result.system), ROUND)
        for who in package.read(folder).submitters
        for result in who.results
    ]
    with pytest.raises(Exception, match=r"our bug|terminated abruptly"):
        list(each(function, units))  # type: ignore[arg-type]
