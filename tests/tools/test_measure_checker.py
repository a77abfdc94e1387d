"""Measuring the checker beside mlcommons' own."""

from pathlib import Path

import pytest

from cepheid.compliance.read.log.records import Event
from cepheid.compliance.read.log.runlog import read
from cepheid.rules import definition
from cepheid.rules.errors import UserError
from cepheid.tools import measure_checker
from cepheid.tools.measure_checker import (
    OURS,
    ROWS,
    Turn,
    copy_logs,
    describe_row,
    find_logs,
    run_checker,
)
from tests.compliance.builder import run_records, write_log

MINI = definition.load("galaxy_shape", "mini")
TRIVIAL = "def check(path):\n    open(path).close()\n    if '1899' in path: raise ValueError\n"


def test_a_tree_of_many_logs_is_measured(tmp_path: Path) -> None:
    """1,900 paths once were an argument of the process, which is longer than the system allows."""
    log = write_log(tmp_path / "log.txt", run_records(MINI)).read_bytes()
    for number in range(1_900):
        folder = tmp_path / f"results/a_system_with_quite_a_long_name_as_vendors_like_them/{number}"
        folder.mkdir(parents=True)
        (folder / "result_0.txt").write_bytes(log)
    logs = find_logs(tmp_path)
    assert len(logs) == 1_900
    assert len(" ".join(map(str, logs))) > 2**17
    turn = run_checker(TRIVIAL, logs, "v1.0", "4.0.0")
    assert turn.wall > 0
    assert turn.failed == 1, "a checker that fails at a log goes on with the next"
    assert run_checker(OURS, logs[:2], "v1.0", "4.0.0").failed == 0


def describe(event: Event) -> tuple[object, ...]:
    """Return all of an event but its metadata."""
    return event.line, event.time_ms, event.monotonic_ms, event.event_type, event.key, event.value


@pytest.mark.parametrize("row", ["labelled", "metadata"])
def test_the_copies_hold_the_same_events(row: str, tmp_path: Path) -> None:
    log = write_log(tmp_path / "result_3.txt", run_records(MINI))
    change = ROWS[row]
    assert change is not None
    (tmp_path / "copies").mkdir()
    (copy,) = copy_logs([log], tmp_path / "copies", change)
    before, after = read(log), read(copy)
    assert copy.name == log.name
    assert [describe(event) for event in after.events] == [describe(e) for e in before.events]
    if row == "labelled":
        assert {problem.kind for problem in after.problems} == {"around"}
    else:
        assert after.problems == ()
        assert after.events[0].metadata != before.events[0].metadata


def test_ratios_are_of_medians_with_the_spread_of_the_turns() -> None:
    ours = [Turn(1.0, seconds, 0.1, 25, 0) for seconds in (1.0, 2.0, 4.0)]
    theirs = [Turn(30.0, seconds, 0.5, 30, 2) for seconds in (30.0, 40.0, 40.0)]
    text = describe_row("as-is", 8.0, {"cepheid": ours, "mlperf_logging": theirs})
    assert "4.0 (2.0 to 8.0) MB/s of processor time" in text
    assert "ratio          20.0 (10.0 to 30.0) in processor time, 30.0 (30.0 to 30.0)" in text
    assert "failed at 2 logs" in text


def test_both_checkers_are_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("mlperf_logging", reason="the peer needs the extra test")
    log = write_log(tmp_path / "result_0.txt", run_records(MINI))
    arguments = [str(log), "--turns", "1", "--copies", "5", "--rows", "labelled"]
    assert measure_checker.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "logs: 1, turns: 1" in printed
    assert "mlperf_logging" in printed
    assert "5 logs, --jobs 2" in printed


def test_a_folder_without_logs_is_said(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no result_<k>\.txt there"):
        measure_checker.main([str(tmp_path)])
