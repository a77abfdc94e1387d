"""What a run tells while it goes on: plain lines for who waits, and what a live check finds."""

import io
import time
from pathlib import Path

import pytest
from rich.console import Console

from cepheid.compliance.finding import Finding
from cepheid.compliance.judge import follow
from cepheid.compliance.read.log.runlog import PARTIAL
from cepheid.reference.run.progress import Progress, Stage
from cepheid.rules import definition
from cepheid.tools.console.terminal import RunDisplay, show_count
from cepheid.tools.run import live_check
from cepheid.tools.run.live_check import LiveCheck, SessionTerminal, judge_finished
from tests.compliance.asserting import Patch, Printed
from tests.compliance.builder import Record, line_of, run_records, write_result

MINI = definition.load("galaxy_shape", "mini")
BLOCKS = 11  # fewer are implausible (T21)


class Log:
    """A run log of a result with all runs but the last, which grows."""

    def __init__(self, tmp_path: Path) -> None:
        folder = write_result(tmp_path / "out", MINI, blocks=lambda index: BLOCKS)
        self.path = folder / f"result_{MINI.runs.required - 1}.txt"
        self.path.unlink()
        self.partial = folder / f"{self.path.name}{PARTIAL}"
        self.messages: list[str] = []
        self.live = LiveCheck(self.path, self.messages.append)

    def write(self, records: list[Record]) -> None:
        with self.partial.open("a") as file:
            file.writelines(f"{line_of(record)}\n" for record in records)

    def said(self) -> str:
        return "\n".join(self.messages)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def records() -> tuple[list[Record], list[Record]]:
    whole = run_records(MINI, MINI.runs.required - 1, blocks=BLOCKS)
    first = next(n for n, record in enumerate(whole) if record["key"] == "eval_stop") + 1
    return whole[:first], whole[first:]


def test_a_compliant_run_gets_no_message(log: Log, monkeypatch: Patch) -> None:
    monkeypatch.setattr(live_check, "SHARE_OF_TIME", 1e9)
    for part in records():
        log.write(part)
        log.live.judge_so_far()
    log.partial.rename(log.path)
    log.live.judge_result()
    assert log.said() == ""


def test_judging_takes_no_more_of_the_clock_than_its_share(log: Log, monkeypatch: Patch) -> None:
    seconds = iter([100.0, 100.5, 149.0, 150.5, 151.0])
    monkeypatch.setattr("cepheid.tools.run.live_check.time.perf_counter", lambda: next(seconds))
    log.write(records()[0])
    judged: list[str] = []

    def certain(*_: object) -> list[Finding]:
        judged.append("again")
        return []

    monkeypatch.setattr(follow, "check_growing_log", certain)
    log.live.judge_so_far()  # took 0.5 s: none in the next 50 s
    log.live.judge_so_far()
    assert len(judged) == 1
    log.live.judge_so_far()
    assert len(judged) == 2


def test_the_log_is_not_judged_at_every_step(log: Log, monkeypatch: Patch) -> None:
    monkeypatch.setattr(LiveCheck, "judge_so_far", lambda self: pytest.fail("judged"))
    shown: list[object] = []
    on_progress = log.live.watch(shown.append)
    for stage in (Stage.TRAINING, Stage.GENERATING):
        on_progress(Progress(stage))
    assert len(shown) == 2


def test_a_result_that_can_no_longer_have_a_score_is_reported(log: Log) -> None:
    folder = log.path.parent
    (folder / "result_1.txt").write_bytes((folder / "result_0.txt").read_bytes())
    log.write([*records()[0], *records()[1]])
    log.partial.rename(log.path)
    log.live.judge_so_far()
    log.live.judge_result()
    assert "the result has no score as it is:" in log.said()
    assert "T15" in log.said()
    assert "T16" not in log.said()


def test_finished_runs_without_an_error_get_no_message(log: Log) -> None:
    """Also where runs are missing, which the runs to come fix."""
    assert judge_finished(log.path.parent, log.messages.append)
    assert log.said() == ""


def test_a_result_without_a_score_among_finished_runs_is_told(tmp_path: Path) -> None:
    """No log is to be set aside for it: runs are not selected (T15)."""
    folder = write_result(tmp_path, MINI, blocks=lambda _: BLOCKS, converged=lambda run: run > 1)
    messages: list[str] = []
    assert not judge_finished(folder, messages.append)
    assert messages[0] == "the result has no score as it is:"
    assert "T17.too_many" in messages[1]
    assert not any("move the log" in message for message in messages)


def test_a_bug_of_the_checker_ends_no_run(log: Log, monkeypatch: Patch, capsys: Printed) -> None:
    def fail(*_: object) -> list[Finding]:
        raise ZeroDivisionError

    monkeypatch.setattr(live_check, "SHARE_OF_TIME", 1e9)
    monkeypatch.setattr(follow, "check_growing_log", fail)
    for part in records():
        log.write(part)
        log.live.judge_so_far()
    assert log.said() == ""
    assert capsys.readouterr().err.count("Traceback (most recent") == 1, "once, for a report"


def test_a_trial_is_not_judged(capsys: Printed, tmp_path: Path) -> None:
    for is_trial in (False, True):
        terminal = SessionTerminal(is_first=True, quiet=False, is_trial=is_trial)
        terminal.check_live(tmp_path / "result_0.txt").tell("a finding")
        assert capsys.readouterr().out == ("" if is_trial else "a finding\n")


@pytest.mark.parametrize(
    ("lost", "is_fine"), [("", True), ("block_stop", False), ("eval_accuracy", False)]
)
def test_a_finished_trial_is_fine_if_it_is_finite(lost: str, is_fine: bool, tmp_path: Path) -> None:
    out = write_result(tmp_path, MINI, runs=1, blocks=lambda _: BLOCKS, converged=lambda _: False)
    log = out / "result_0.txt"
    lines = log.read_text().splitlines(keepends=True)
    last = max((at for at, line in enumerate(lines) if lost and f'"{lost}"' in line), default=None)
    log.write_text("".join(line for at, line in enumerate(lines) if at != last))
    terminal = SessionTerminal(is_first=True, quiet=False, is_trial=True)
    assert terminal.judge_finished(out) == is_fine


pytest.importorskip("mlperf_logging", reason="the loop writes logs with mlperf-logging")


def test_a_line_for_every_evaluation() -> None:
    output = io.StringIO()
    with RunDisplay(MINI, Console(file=output, width=200)) as display:
        display(Progress(Stage.INITIALISING))
        for samples in range(32, 3200, 32):
            display(Progress(Stage.TRAINING, samples))
        good = {"e_rmse": 0.0, "nll": 9.0, "coverage_68": 0.7, "coverage_95": 0.9}
        display(Progress(Stage.EVALUATED, 3200, good))
    lines = output.getvalue().splitlines()
    assert len(lines) == 2
    assert "3,200 samples" in lines[1]
    assert "e_rmse 0.0000 (reached)" in lines[1]
    assert f"target {MINI.quality[1].target:g}" in lines[1]
    assert "\x1b" not in output.getvalue()


def test_counted_work_says_what_and_how_long_and_nothing_where_there_is_none() -> None:
    output = io.StringIO()
    with show_count("preparing data", "samples", Console(file=output)):
        pass
    assert output.getvalue() == ""
    with show_count("preparing data", "samples", Console(file=output, width=200)) as on_progress:
        for done in range(0, 1001, 250):
            on_progress(done, 1000)
    assert output.getvalue().splitlines() == [
        "preparing data: 1,000 samples",
        "preparing data: done in 0 s",
    ]


def test_counted_work_says_how_long_it_takes_as_measured_on_the_first(monkeypatch: Patch) -> None:
    output, now = io.StringIO(), [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with show_count("preparing data", "samples", Console(file=output, width=200)) as on_progress:
        for done in (1_000, *range(2_000, 41_000, 1_000)):  # the first were there already
            on_progress(done, 40_000)
            now[0] += 4
    lines = output.getvalue().splitlines()
    assert lines[1:3] == [
        "preparing data: about 2 min left at 250.0 samples/s, as measured on the first 3,000",
        "preparing data: about 2 min left at 250.0 samples/s, as measured on the first 6,000",
    ]
    assert len(lines) < 8
