"""Interruptions at any moment: signals, the watcher that outlives a run, the log in between."""

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from cepheid.reference.run import logfile
from cepheid.reference.run.config import configure
from cepheid.reference.run.log import RunLogWriter
from cepheid.reference.run.task import run_task
from cepheid.reference.session import watcher
from cepheid.reference.session.interruption import AGAIN_SECONDS, Interruption
from cepheid.reference.session.result_folder import open_result_folder
from cepheid.rules import definition
from tests.checkout import run_program
from tests.processes import Program
from tests.reference.run.scripted import ScriptedTask, read_events
from tests.reference.run.test_train import GOOD, POOR

ROOT = Path(__file__).resolve().parents[3]


def make_runs() -> None:
    """Make runs one after the other as fast as they go, so that a signal may hit every line.

    That is opening, records, blocks, closing, names, and what is kept beside the log. The program
    takes the output folder and a file that says that it has begun.
    """
    output, begun = map(Path, sys.argv[1:])
    config = configure(definition.load("galaxy_shape", "mini"), seed=7)
    config = config.name_system("local", "box", "code")
    system = {"submitter": "local", "system": "box"}
    try:
        with open_result_folder(output, config, system) as folder, Interruption() as signals:
            begun.touch()
            for index in folder.missing(100_000):
                log = RunLogWriter(folder.log(index))
                try:
                    with signals.allow():
                        run_task(ScriptedTask([POOR, GOOD]), config.select_run(index), log)
                finally:
                    if log.close() == folder.log(index):
                        folder.log(index).with_suffix(".kept").touch()
    except KeyboardInterrupt:
        sys.exit(1)


@pytest.mark.parametrize(
    "how",
    [
        "SIGTERM SIGINT SIGTERM",
        "SIGKILL",
        *(pytest.param(one, marks=pytest.mark.promise) for one in ("SIGTERM", "SIGINT")),
    ],
)
def test_at_any_moment_all_logs_are_closed_and_nothing_is_lost(how: str, tmp_path: Path) -> None:
    seconds = random.Random(how)
    for attempt in range(1, 4):
        begun = tmp_path / f"begun_{attempt}"
        process = Program(f"{__name__}:make_runs", tmp_path, begun)
        while not begun.exists():
            assert process.poll() is None, process.communicate()
            time.sleep(0.001)
        time.sleep(seconds.uniform(0, 0.3))
        for name in how.split():
            process.send_signal(signal.Signals[name])
        _, err = process.communicate(timeout=60)  # the watcher has ended then, too
        assert process.returncode == (-signal.SIGKILL if how == "SIGKILL" else 1), err
        (folder,) = tmp_path.glob("results/box/*")
        assert not list(folder.glob("*.partial"))
        whole = list(folder.glob("result_*.txt"))
        broken_off = list(folder.glob("interrupted_*.txt"))
        assert len(broken_off) <= attempt
        for log in [*whole, *broken_off]:
            keys = [record["key"] for record in read_events(log)]
            ends = [key for key in keys if key in ("run_stop", "init_aborted")]
            assert len(ends) == 1, log
            assert keys[-1] == ends[0] or "run_stop" in keys[-3:-1], log
        for log in whole:
            assert '"status": "success"' in log.read_text()
            assert read_events(log)[-1]["value"] == "d" * 64
            assert log.with_suffix(".kept").exists() or how == "SIGKILL"
        for log in broken_off:
            last = log.read_text().splitlines()[-1]
            assert "broken off" in last or "not digested: " in last


def test_signals_wait_while_they_may_not_come() -> None:
    reached = []

    def work() -> None:
        with Interruption() as signals:
            with signals.allow():
                reached.append("possible")
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.05)
            reached.append("not possible")
            with signals.allow():
                reached.append("too late")

    with pytest.raises(KeyboardInterrupt, match="stopped by SIGTERM"):
        work()
    assert reached == ["possible", "not possible"]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_an_interruption_that_a_library_swallows_comes_again() -> None:
    swallowed = []

    def work() -> None:
        with Interruption() as signals, signals.allow():
            try:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(1)
            except KeyboardInterrupt as error:
                swallowed.append(error)
            time.sleep(10 * AGAIN_SECONDS)

    with pytest.raises(KeyboardInterrupt, match="stopped by SIGINT"):
        work()
    assert len(swallowed) == 1
    time.sleep(1.5 * AGAIN_SECONDS)  # none comes afterwards


def test_the_first_signal_waits_where_something_is_finished_first() -> None:
    reached = []

    def work(signals: Interruption) -> None:
        with signals.allow():
            signals.finish_first(lambda: reached.append("told"))
            os.kill(os.getpid(), signal.SIGTERM)
            signals.finish_first(lambda: reached.append("told again"))
            time.sleep(1.2 * AGAIN_SECONDS)
            reached.append("finished")
        reached.append("between")
        with signals.allow():
            reached.append("too late")

    with Interruption() as signals, pytest.raises(KeyboardInterrupt, match="stopped by SIGTERM"):
        work(signals)
    assert reached == ["told", "finished", "between"]


def test_the_second_signal_does_not_wait() -> None:
    reached = []

    def work() -> None:
        with Interruption() as signals, signals.allow():
            signals.finish_first(lambda: reached.append("told"))
            os.kill(os.getpid(), signal.SIGINT)
            signals.finish_first(lambda: reached.append("told again"))  # in the next stage
            os.kill(os.getpid(), signal.SIGINT)
            reached.append("too late")

    with pytest.raises(KeyboardInterrupt, match="stopped by SIGINT"):
        work()
    assert reached == ["told"]


@pytest.mark.parametrize(
    ("sent", "is_killed"),
    [
        ([signal.SIGINT, watcher.FINISHES], False),
        ([signal.SIGINT], True),
        ([signal.SIGTERM, watcher.FINISHES, signal.SIGTERM], True),
    ],
)
def test_a_run_that_finishes_first_is_not_killed_for_its_first_signal(
    sent: list[int], is_killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = os.pipe()
    killed = []

    def kill(process: int, number: int) -> None:
        killed.append(number)
        os.close(writing)

    monkeypatch.setattr(watcher, "GRACE_SECONDS", 0.2)
    monkeypatch.setattr("cepheid.reference.session.watcher.os.kill", kill)
    with open(reading) as pipe:
        monkeypatch.setattr("sys.stdin", pipe)
        for number in sent:
            os.write(writing, bytes([number]))
        if not is_killed:
            threading.Timer(0.6, os.close, [writing]).start()
        why, is_told = watcher._wait_for_end(os.getppid())
    assert killed == ([signal.SIGKILL] if is_killed else [])
    assert ("did not end" in why) == is_killed
    assert why == watcher.KILLED or is_killed
    assert not is_told


WATCHED = """
import os, pathlib, signal, sys, time
from cepheid.reference.run import logfile
from cepheid.reference.session import watcher
folder = pathlib.Path(sys.argv[1])
lock = os.open(folder, os.O_RDONLY)
with watcher.watch(folder, folder, lock):
    file = logfile.RecordFile(folder / "result_3.txt.partial", is_new=True)
    for key in ("init_start", "init_stop", "run_start"):
        file.write(key)
    file.write("block_stop", block_num=1, samples_count=640, train_loss=1.0)
    with open(folder / "result_3.txt.partial", "a") as half:
        half.write(':::MLLOG {"namespace": "", "time_')
    child = os.fork()  # one that lives on must not keep the watcher waiting, nor be the run
    if child == 0:
        os.close(1)
        os.close(2)
        os.setsid()
        time.sleep(5)
        os._exit(0)
    os.kill(child, signal.SIGTERM)
    print(child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_log_of_a_killed_run_gets_its_last_record(tmp_path: Path) -> None:
    own = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = run_program([sys.executable, "-c", WATCHED, tmp_path], env=own, timeout=60)
    now = time.time()
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    log = tmp_path / "interrupted_result_3_0.txt"
    assert ended.stderr == (
        f"cepheid: the run was killed, perhaps for lack of memory; its log is kept: {log}\n"
    )
    *_, block, stop = read_events(log)
    assert block["key"] == "block_stop"
    assert stop["key"] == "run_stop"
    assert stop["event_type"] == "INTERVAL_END"
    metadata = stop["metadata"]
    assert metadata["status"] == "aborted"
    assert metadata["samples_count"] == 640
    assert metadata["file"] == "reference/session/watcher.py"
    assert abs(stop["time_ms"] / 1000 - now) < 10
    assert abs(metadata["monotonic_ms"] / 1000 - time.monotonic()) < 10


def test_a_log_ends_once_overwrites_no_other_and_takes_nothing_but_json(tmp_path: Path) -> None:
    partial = tmp_path / "result_0.txt.partial"
    for number in range(3):
        file = logfile.RecordFile(partial, is_new=True)
        file.write("init_start")
        file.close()
        for reason in ("first", "second"):
            logfile.write_end(partial, reason)
        closed = logfile.close_log(partial, "third")
        assert closed.name == f"interrupted_result_0_{number}.txt"
        assert [r["key"] for r in read_events(closed)] == ["init_start", "init_aborted"]
    file = logfile.RecordFile(tmp_path / "result_0.txt.partial", is_new=True)
    with pytest.raises(TypeError, match="not JSON serializable"):
        file.write("seed", object())
    assert (tmp_path / "result_0.txt.partial").read_text() == ""


def test_no_timer_outlives_the_handlers() -> None:
    with Interruption() as signals:
        block = signals.allow()  # kept: at its end the timer is turned off
        block.__enter__()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)  # as at the end of the block, before that
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


# The clocks of a log's records --------------------------------------------------------------------


class Clocks:
    """A machine's clocks; the process loses the processor before some readings of wall time."""

    def __init__(self, lost_seconds: list[float]) -> None:
        self.now, self.lost_seconds = 100.0, lost_seconds

    def monotonic(self) -> float:
        """Return seconds since the machine was started."""
        self.now += 1e-6
        return self.now

    def time(self) -> float:
        """Return seconds since 1970, after the wait that stands next in the list."""
        self.now += self.lost_seconds.pop(0) if self.lost_seconds else 0.0
        return 1.7e9 + self.now


@pytest.mark.parametrize("lost_seconds", [[], [0.131], [0.2] * 5, [0.2, 0.05] * 50])
def test_both_clocks_are_read_at_one_moment(
    monkeypatch: pytest.MonkeyPatch, lost_seconds: list[float]
) -> None:
    """Also while the machine is so busy that the process waits at each of the first readings."""
    clocks = Clocks(list(lost_seconds))
    monkeypatch.setattr(time, "monotonic", clocks.monotonic)
    monkeypatch.setattr(time, "time", clocks.time)
    time_ms, monotonic_ms = logfile.read_clocks()
    apart_ms = (time_ms - 1.7e12) - monotonic_ms
    # Where it is always busy, the best of a limited number of readings is taken.
    assert abs(apart_ms) < (51 if len(lost_seconds) > 10 else 1.1)
    assert len(clocks.lost_seconds) == max(0, len(lost_seconds) - logfile.READINGS_MAX)
