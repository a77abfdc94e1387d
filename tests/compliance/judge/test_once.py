"""Every log is opened and parsed once, by any command; several processes find what one finds."""

import hashlib
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cepheid.compliance.checks import Place
from cepheid.compliance.judge import unit
from cepheid.compliance.judge.judgement import judge
from cepheid.compliance.judge.unit import Each, JudgedUnit, Unit, use_processes
from cepheid.compliance.read import package
from cepheid.compliance.read.log import records, runlog
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules import definition, rounds
from cepheid.rules.definition import Definition
from cepheid.tools import build_leaderboard, check_compliance, pack_submission, summarize_results
from tests.compliance.asserting import Patch
from tests.compliance.builder import SYSTEM, put, run_records, write_log, write_power, write_result
from tests.processes import have_ended, kill_after_a_line

Main = Callable[[list[str]], int]
WATCHED: list[int] = []  # the descriptor of the file that lists what is opened


def _list_opened(event: str, arguments: tuple[object, ...]) -> None:
    """Write down each log that this process, or one forked from it, opens."""
    if event == "open" and WATCHED and str(arguments[0]).endswith((".txt", ".csv")):
        os.write(WATCHED[0], f"{os.getpid()} {os.path.abspath(str(arguments[0]))}\n".encode())


sys.addaudithook(_list_opened)  # a hook cannot be removed; without WATCHED it does nothing


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], list[tuple[str, Path]]]]:
    """The process and the path of each log that was opened, in order."""
    path = tmp_path / "opened"
    WATCHED.append(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND))
    yield lambda: [
        (process, Path(name))
        for process, name in (line.split(" ", 1) for line in path.read_text().splitlines())
    ]
    os.close(WATCHED.pop())


@pytest.fixture
def submissions(star_shape: Definition) -> Path:
    """Two submitters with manifests, a result of each kind, an interrupted run, power logs."""
    for name in ("acme", "umbrella"):
        root = Path("submissions", name)
        system = {**SYSTEM, "submitter": name}
        folder = write_result(root, star_shape, system=system)
        write_result(root, definition.load("star_images", "mini"), system=system)
        runs = [run_records(star_shape, index, system=system) for index in range(5)]
        write_log(folder / "interrupted_0.txt", runs[1][: len(runs[1]) // 2])
        for index, run in enumerate(runs):
            write_power(folder, run, index, {"node0": 1000.0})
        assert pack_submission.main([str(root)]) == 0
    return Path("submissions")


def logs_below(folder: Path) -> list[Path]:
    return sorted(
        path.resolve()
        for pattern in ("results/*/*/*.txt", "results/*/*/*.csv")
        for path in folder.glob(f"*/{pattern}")
    )


COMMANDS: dict[str, tuple[Main, list[str]]] = {
    "check": (check_compliance.main, ["--jobs", "1"]),
    "check in two processes": (check_compliance.main, ["--jobs", "2"]),
    "summary": (summarize_results.main, []),
    "leaderboard": (build_leaderboard.main, ["--output", "site"]),
    "packing": (pack_submission.main, []),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_each_log_is_opened_once(
    command: str, submissions: Path, opened: Callable[[], list[tuple[str, Path]]]
) -> None:
    main, options = COMMANDS[command]
    asked = submissions / "acme" if command == "packing" else submissions
    assert main([str(asked), *options]) == 0
    logs = [path for path in logs_below(submissions) if path.is_relative_to(asked.resolve())]
    assert len(logs) == (5 + 5 + 1 + 5) * (1 if command == "packing" else 2)
    assert sorted(path for _, path in opened() if path in set(logs)) == logs
    here = {process == str(os.getpid()) for process, path in opened() if path in set(logs)}
    assert here == {command != "check in two processes"}, "two processes leave none to the parent"


def test_the_digest_is_that_of_all_bytes(tmp_path: Path, monkeypatch: Patch) -> None:
    """Also where the parser stops early, or skips what is too long."""
    monkeypatch.setattr(records, "LINE_BYTES_MAX", 1000)
    monkeypatch.setattr(records, "EVENTS_MAX", 3)
    log = write_log(tmp_path / "result_0.txt", run_records(MINI))
    log.write_bytes(b"x" * 5000 + b"\n" + log.read_bytes() + b"no line feed at the end")
    read = runlog.read(log, with_digest=True)
    assert any(problem.lost for problem in read.problems)
    assert read.sha256 == hashlib.sha256(log.read_bytes()).hexdigest()
    assert runlog.read(log).sha256 == ""
    assert runlog.read(tmp_path, with_digest=True).sha256 == ""


def test_no_log_is_kept(submissions: Path, monkeypatch: Patch) -> None:
    """Thousands of results fit into memory because each one's logs are let go."""
    alive: list[weakref.ref[RunLog]] = []
    most, original = 0, runlog.read

    def read(path: Path, *how: bool) -> RunLog:
        nonlocal most
        log = original(path, *how)
        alive.append(weakref.ref(log))
        most = max(most, sum(known() is not None for known in alive))
        return log

    monkeypatch.setattr(runlog, "read", read)
    monkeypatch.setattr(unit, "LOGS_FOR_PROCESSES", 10**6)
    assert build_leaderboard.main([str(submissions), "--output", "site"]) == 0
    assert len(alive) == 2 * (5 + 5 + 1)
    assert most <= 6 + 5, "no more than the logs of two results at a time"


ROUND = rounds.load(rounds.CURRENT)
MINI = definition.load("galaxy_shape", "mini")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six systems; every other one has a log that breaks a rule."""
    for number in range(6):
        system = {**SYSTEM, "system": f"box{number}"}
        results = write_result(tmp_path, MINI, runs=2, system=system)
        if number % 2:
            broken = put(run_records(MINI, 1, system=system), "opt_name", value="sgd")
            write_log(results / "result_1.txt", broken)
    return tmp_path


def test_any_number_of_processes_finds_the_same_and_counts_logs(folder: Path) -> None:
    found = [
        judge([package.read(folder)], ROUND, each).findings
        for each in (map, use_processes(1), use_processes(2), use_processes(5))
    ]
    assert found[0] == found[1] == found[2] == found[3]
    assert [f.rule for f in found[0] if f.is_error] == ["T12"] * 3
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
        Unit(result, replace(Place(rounds.CURRENT), system=result.system), ROUND)
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
