"""What can go wrong in a run on one rank or several, as the user meets it.

The ranks are started without a launcher, so that nobody ends those that another one left behind.
"""

import json
import re
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="runs need the extra torch")

from cepheid.compliance.checks import Place, check_log
from cepheid.compliance.read.log.runlog import read
from cepheid.measure.engine.own_process import find_free_port
from cepheid.reference.machine.ranks import TIMEOUT_VARIABLE, read_rank_timeout
from cepheid.reference.session import watcher
from cepheid.rules import rounds
from tests import processes, tiny
from tests.compliance.asserting import Patch
from tests.full_disk import limit_files
from tests.processes import Ended, Program
from tests.tools import scripted

SECONDS = 60  # a bound for a busy machine; nothing here waits for a time-out


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch: Patch) -> None:
    """The definition of the scripted runs, for them and for the checker."""
    tiny.use(tiny.folder_of("galaxy_shape", timing=scripted.TIMING), monkeypatch)


def start(
    output: Path,
    *arguments: str,
    ranks: int = 1,
    mishap: str = "",
    prelude: Callable[[], object] | None = None,
) -> list[Program]:
    environment = {"OMP_NUM_THREADS": "1", "HAPPENED": str(output.with_name("happened"))}
    environment |= {"MISHAP": mishap} if mishap else {}
    if ranks > 1:
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_port())}
    programs = []
    for rank in range(ranks):
        if ranks > 1:
            environment |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        line = ["--runs", "1", "--output", str(output), *arguments]
        programs.append(
            Program("tests.tools.scripted:main", *line, environment=environment, prelude=prelude)
        )
    return programs


end_all = partial(processes.end_all, timeout=SECONDS)


def run(output: Path, *arguments: str, **how: Any) -> list[Ended]:
    return end_all(start(output, *arguments, **how))


def logs(output: Path) -> list[str]:
    (folder,) = output.glob("results/*/galaxy_shape-mini-closed")
    return sorted(path.name for path in folder.iterdir() if path.name != "configuration.json")


def last_record(output: Path, name: str) -> dict[str, Any]:
    (path,) = output.glob(f"results/*/*/{name}")
    ends = [line for line in path.read_text().splitlines() if "run_stop" in line or "abort" in line]
    assert len(ends) == 1, "exactly one record ends a log"
    (*_, last) = [line for line in path.read_text().splitlines() if "data_read" not in line]
    assert last == ends[0]
    record: dict[str, Any] = json.loads(ends[0].removeprefix(":::MLLOG "))
    return record


def findings(output: Path, name: str) -> set[str]:
    (path,) = output.glob(f"results/*/*/{name}")
    found = check_log(read(path), Place(rounds.CURRENT), rounds.load())
    return {finding.rule for finding in found if finding.is_error}


def assert_goes_on(output: Path) -> None:
    """The same command makes the run that is missing."""
    (again,) = run(output)
    assert again.returncode == 0, again.stderr
    assert "result_0.txt" in logs(output)


# Ranks --------------------------------------------------------------------------------------------

KEPT = "interrupted_result_0_0.txt"


@pytest.mark.parametrize(
    ("moment", "rank"),
    [("prepare", 0), ("build", 0), ("build", 1), ("train", 0), ("train", 1), ("evaluate", 1)],
)
def test_a_rank_that_is_killed_ends_all(moment: str, rank: int, tmp_path: Path) -> None:
    both = run(tmp_path / "out", ranks=2, mishap=f"{moment} {rank} kill")
    assert both[rank].returncode == -signal.SIGKILL
    assert both[1 - rank].returncode == 2, both[1 - rank].stderr
    assert not any("Traceback" in one.stderr for one in both)
    if moment == "prepare":  # before there is a log
        assert logs(tmp_path / "out") == []
        return
    who = "the run was killed" if rank == 0 else "another rank has ended without a message"
    assert who in both[0].stderr
    assert "cepheid" not in both[1].stderr
    assert logs(tmp_path / "out") == [KEPT]
    record = last_record(tmp_path / "out", KEPT)
    if moment == "build":
        assert record["key"] == "init_aborted"
        return
    assert record["metadata"]["status"] == "aborted"
    assert record["metadata"]["samples_count"] == (32 if moment == "train" else 64)
    assert findings(tmp_path / "out", KEPT) == {"T17"}  # a run that did not converge
    assert_goes_on(tmp_path / "out")


@pytest.mark.parametrize("rank", [0, 1])
def test_the_rank_that_fails_says_why(rank: int, tmp_path: Path) -> None:
    both = run(tmp_path / "out", ranks=2, mishap=f"train {rank} raise")
    assert [one.returncode for one in both] == [2, 2]
    assert "MemoryError: no memory left on this rank" in both[rank].stderr
    assert "cepheid" not in both[1 - rank].stderr
    assert "Traceback" not in both[1 - rank].stderr
    reason = last_record(tmp_path / "out", KEPT)["metadata"]["reason"]
    assert reason.endswith("MemoryError: no memory left on this rank")
    assert ("rank 1" in reason) == (rank == 1)


def test_a_rank_that_cannot_begin_says_why_and_no_run_begins(tmp_path: Path) -> None:
    both = run(tmp_path / "out", ranks=2, mishap="create 1 refuse")
    assert [one.returncode for one in both] == [2, 2]
    assert [one.stderr for one in both] == ["", "cepheid: bad data on this rank: delete them\n"]
    assert logs(tmp_path / "out") == []


@pytest.mark.parametrize("arguments", [["--nonsense"], ["--set", "global_batch_size=33"]])
def test_wrong_use_on_several_ranks_is_told_once(arguments: list[str], tmp_path: Path) -> None:
    both = run(tmp_path / "out", *arguments, ranks=2)
    assert [one.returncode for one in both] == [2, 2]
    told = [one.stderr for one in both if one.stderr]
    assert len(told) == 1
    assert told[0].count("cepheid") <= 2  # argparse prints usage, too
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("moment", "reason"),
    [
        ("train", "the training loss is nan"),
        ("evaluate", "the quality is not finite (e_rmse, nll)"),
    ],
)
def test_a_number_that_is_not_finite_ends_all(moment: str, reason: str, tmp_path: Path) -> None:
    both = run(tmp_path / "out", ranks=2, mishap=f"{moment} 1 nan")
    assert [one.returncode for one in both] == [1, 1]
    assert "a lower learning rate or precision=fp32 may help" in both[0].stdout
    assert logs(tmp_path / "out") == ["result_0.txt"]  # such a run counts (T15)
    stop = last_record(tmp_path / "out", "result_0.txt")
    assert stop["metadata"]["status"] == "aborted"
    assert stop["metadata"]["reason"].startswith(reason)
    (log,) = (tmp_path / "out").rglob("result_0.txt")
    assert "NaN" not in log.read_text()


def test_ranks_that_cannot_meet(tmp_path: Path, monkeypatch: Patch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr("tests.tools.test_mishaps.find_free_port", lambda: port)
        first, second = start(tmp_path / "out", ranks=2)
        _, err = first.communicate(timeout=SECONDS)
        second.terminate()  # it waits for the first one, which may still be about to start
        assert end_all([second])[0].returncode in (-signal.SIGTERM, 1)
    assert first.returncode == 2
    assert f"cepheid: 2 ranks could not meet at 127.0.0.1:{port}" in err
    assert "Traceback" not in err


def stop_a_rank(rank: int, output: Path) -> tuple[Ended, Ended]:
    """Stop one of two ranks until the other one has ended; return how both ended."""
    both = start(output, ranks=2, mishap=f"train {rank} wait")
    wait_for(output.with_name("happened"))
    both[rank].send_signal(signal.SIGSTOP)
    try:
        (other,) = end_all([both[1 - rank]])
    finally:
        both[rank].send_signal(signal.SIGCONT)
    let_go_on(output)
    (stopped,) = end_all([both[rank]])
    return stopped, other


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_stopped_is_named(rank: int, tmp_path: Path, monkeypatch: Patch) -> None:
    """The other one says whom it waits for, and gives up after the time that was set."""
    monkeypatch.setenv("CEPHEID_RANK_TIMEOUT", "3")
    _, other = stop_a_rank(rank, tmp_path / "out")
    assert other.returncode == 2
    assert re.search(rf"cepheid: waiting for rank {rank} \(.*giving up after 3 s", other.stderr)
    assert re.search(
        rf"cepheid: rank {rank} \(.*did not answer for \d s: stopped, or", other.stderr
    )
    assert "Traceback" not in other.stderr
    assert logs(tmp_path / "out") == [KEPT]
    assert_blames(rank, tmp_path / "out")


def assert_blames(rank: int, output: Path) -> None:
    """The log of the first rank names the one that was stopped, also if that was itself."""
    names = r"rank 1 \(\S+\) did not answer for" if rank else "rank 0 did not run for"
    reason = last_record(output, KEPT)["metadata"]["reason"]
    assert re.match(rf"broken off: {names} \d+ s", reason), reason


def test_a_silent_rank_is_given_up_sooner_than_one_that_lives(monkeypatch: Patch) -> None:
    monkeypatch.delenv(TIMEOUT_VARIABLE, raising=False)
    usual = read_rank_timeout()
    assert (usual.silent_seconds, usual.seconds) == (120, 1800)
    monkeypatch.setenv(TIMEOUT_VARIABLE, "3000")
    assert read_rank_timeout().silent_seconds == 3000


@pytest.mark.promise
def test_a_stopped_rank_is_named_before_a_busy_one(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("SILENT_SECONDS", "12")
    stopped, other = stop_a_rank(1, tmp_path / "out")
    assert other.returncode == stopped.returncode == 2
    assert re.search(r"cepheid: rank 1 .*did not answer for [\d,]+ s: stopped", other.stderr)
    assert "killed" not in other.stderr + stopped.stderr
    assert logs(tmp_path / "out") == [KEPT]
    assert_blames(1, tmp_path / "out")
    assert_goes_on(tmp_path / "out")


@pytest.mark.promise
def test_ranks_that_were_all_stopped_go_on(tmp_path: Path, monkeypatch: Patch) -> None:
    """So does Slurm with a job that makes way for another one."""
    monkeypatch.setenv("SILENT_SECONDS", "12")
    both = start(tmp_path / "out", ranks=2, mishap="train 0 wait")
    wait_for(tmp_path / "happened")
    # They are stopped for longer than a silent rank has; then each looks around.
    for number, seconds in ((0, 5), (signal.SIGSTOP, 14), (signal.SIGCONT, 3)):
        for process in both:
            process.send_signal(number)
        time.sleep(seconds)
    let_go_on(tmp_path / "out")
    assert [one.returncode for one in end_all(both)] == [0, 0]
    assert logs(tmp_path / "out") == ["result_0.txt"]


def test_a_stopped_run_that_its_launcher_kills_was_stopped(tmp_path: Path) -> None:
    (process,) = start(tmp_path / "out", mishap="train 0 wait")
    wait_for(tmp_path / "happened")
    process.send_signal(signal.SIGSTOP)
    time.sleep(4 * watcher.LOOK_SECONDS)  # even where others compute, too
    process.kill()
    (ended,) = end_all([process])
    assert "cepheid: the run was stopped by SIGSTOP or Ctrl-Z for" in ended.stderr
    assert "lack of memory" not in ended.stderr


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_never_comes_is_named(rank: int, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("CEPHEID_RANK_TIMEOUT", "3")
    both = start(tmp_path / "out", ranks=2)
    both[rank].kill()
    (other,) = end_all([both[1 - rank]])
    assert other.returncode == 2
    assert f"cepheid: waiting for rank {rank}" in other.stderr
    assert ("rank 1 of 2 did not come within 3 s" if rank else "could not meet at") in other.stderr
    assert "Traceback" not in other.stderr


@pytest.mark.parametrize("seconds", ["soon", "0", "nan"])
def test_a_timeout_is_a_number_of_seconds(seconds: str, tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("CEPHEID_RANK_TIMEOUT", seconds)
    both = run(tmp_path / "out", ranks=2)
    assert [one.returncode for one in both] == [2, 2]
    assert f"CEPHEID_RANK_TIMEOUT={seconds}: expected seconds above 0" in both[0].stderr


# Signals ------------------------------------------------------------------------------------------


@pytest.mark.promise
def test_a_run_that_waits_for_a_rank_in_a_library_ends_on_sigterm(tmp_path: Path) -> None:
    """The first rank is inside a collective, in C++: no handler of Python runs there."""
    both = start(tmp_path / "out", ranks=2, mishap="train 1 hang")
    wait_for(tmp_path / "happened")
    time.sleep(2)  # until the first rank, too, is where it waits, on a busy machine
    both[0].send_signal(signal.SIGTERM)
    both[0].send_signal(signal.SIGTERM)
    both[0].wait(timeout=SECONDS)
    both[1].send_signal(signal.SIGTERM)
    first, second = end_all(both)
    assert (first.returncode, second.returncode) == (-signal.SIGKILL, -signal.SIGTERM)
    assert "stopped by SIGTERM and did not end within 10 s" in first.stderr
    assert logs(tmp_path / "out") == [KEPT]
    assert last_record(tmp_path / "out", KEPT)["metadata"]["samples_count"] == 32


def test_a_finished_run_is_not_lost_to_ctrl_c_while_its_data_are_digested(tmp_path: Path) -> None:
    output = tmp_path / "out"
    (process,) = start(output, "--runs", "2", mishap="digest 0 wait")
    wait_for(tmp_path / "happened")
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    let_go_on(output)
    (ended,) = end_all([process])
    assert ended.returncode == 1, ended.stderr
    assert "cepheid: this run is finished. Its data are read once more" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "run 0: all targets reached" in ended.stdout
    assert logs(output) == ["result_0.txt"], "no further run begins"
    assert findings(output, "result_0.txt") == set()
    (again,) = run(output, "--runs", "2")
    assert again.returncode == 0, again.stderr
    assert logs(output) == ["result_0.txt", "result_1.txt"]


def test_a_second_ctrl_c_does_not_wait_for_the_digest(tmp_path: Path) -> None:
    (process,) = start(tmp_path / "out", mishap="digest 0 wait")
    wait_for(tmp_path / "happened")
    process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    (ended,) = end_all([process])
    assert ended.returncode == 1, ended.stderr
    assert "run 0 does not count" in ended.stdout
    assert logs(tmp_path / "out") == [KEPT]
    assert_goes_on(tmp_path / "out")


def test_a_data_file_that_is_cut_short_in_a_run_is_told(tmp_path: Path) -> None:
    (ended,) = run(tmp_path / "out", mishap="train 0 bus")
    assert ended.returncode == -signal.SIGKILL
    assert "stopped by SIGBUS: a mapped file could not be read" in ended.stderr
    assert logs(tmp_path / "out") == [KEPT]
    reason = last_record(tmp_path / "out", KEPT)["metadata"]["reason"]
    assert reason.startswith("broken off: stopped by SIGBUS: a mapped file")
    assert_goes_on(tmp_path / "out")


# Two at once, clocks, kills -----------------------------------------------------------------------


def let_go_on(output: Path) -> None:
    output.with_name("happened.seen").touch()


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} is not there"
        time.sleep(0.02)


def test_two_runs_into_the_same_folder(tmp_path: Path) -> None:
    """The second is told who holds the folder, and changes nothing."""
    output = tmp_path / "out"
    (first,) = start(output, mishap="train 0 wait")
    wait_for(tmp_path / "happened")
    before = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    (second,) = run(output)
    assert second.returncode == 2
    assert f"another `cepheid run` is writing there (process {first.pid}); wait" in second.stderr
    assert {path: path.read_bytes() for path in output.rglob("*") if path.is_file()} == before
    let_go_on(output)
    (whole,) = end_all([first])
    assert whole.returncode == 0, whole.stderr
    assert logs(output) == ["result_0.txt"]
    (nothing,) = run(output)
    assert "nothing to run" in nothing.stdout


def test_two_that_start_at_the_same_moment(tmp_path: Path) -> None:
    output = tmp_path / "out"
    both = end_all([*start(output), *start(output)])
    assert logs(output) == ["result_0.txt"]
    assert findings(output, "result_0.txt") == set()
    # The later one is refused, or finds that all is done, if it was slow.
    first, second = sorted(both, key=lambda one: "all targets reached" not in one.stdout)
    assert first.returncode == 0, first.stderr
    refused = second.returncode == 2 and "another `cepheid run` is writing there" in second.stderr
    assert refused or "nothing to run" in second.stdout


def test_a_clock_that_is_set_back_is_told_at_once_and_later_with_a_way_on(tmp_path: Path) -> None:
    output = tmp_path / "out"
    (whole,) = run(output, mishap="train 0 clock")
    told, _, rest = whole.stdout.partition("all targets reached")
    assert "this run can no longer count:" in told
    assert re.search(r"\.partial:\d+: T4\.", told)
    assert "fix: " in told
    assert "T4" not in rest, "each finding is told once"
    assert "T4" in findings(output, "result_0.txt")
    assert whole.returncode == 1, "the log is rejected"
    (log,) = output.glob("results/*/*/result_0.txt")
    for runs, done in (("1", "nothing to run"), ("2", "all targets reached"), ("2", "nothing")):
        (again,) = run(output, "--runs", runs)
        assert again.returncode == 1, again.stderr
        assert done in again.stdout
        assert re.search(rf"{re.escape(str(log))}:\d+: T4\.", again.stdout)
        assert again.stdout.count(f"{log}: the checker rejects this log, so the result has no") == 1
        assert "move the log out of the output folder" in again.stdout
        assert "result_1.txt: the checker rejects" not in again.stdout
    log.rename(tmp_path / "rejected.txt")
    (made,) = run(output, "--runs", "2")
    assert made.returncode == 0, made.stderr
    assert "the checker rejects" not in made.stdout
    seeds = [
        next(line for line in path.read_text().splitlines() if '"key": "seed"' in line)
        for path in (log, tmp_path / "rejected.txt")
    ]
    first, second = (json.loads(line.removeprefix(":::MLLOG "))["value"] for line in seeds)
    assert first == second


def test_a_result_that_can_have_no_score_is_told(tmp_path: Path) -> None:
    """One run may miss its targets, a second one may not."""
    output = tmp_path / "out"
    (first,) = run(output, mishap="evaluate 0 nan")
    assert first.returncode == 1
    assert "the result has no score" not in first.stdout
    (second,) = run(output, "--runs", "2", mishap="evaluate 0 nan")
    assert "the result has no score as it is:" in second.stdout
    assert re.search(r"T17\.\S+ 2 of 2 runs did not converge", second.stdout)


def test_killed_between_two_runs_of_one_command(tmp_path: Path) -> None:
    """What is made stays, what was going on does not count, the same command makes the rest."""
    output = tmp_path / "out"
    (fine,) = run(output)
    assert fine.returncode == 0, fine.stderr
    before = {path.name: path.read_bytes() for path in output.glob("results/*/*/result_*")}
    (killed,) = run(output, "--runs", "3", mishap="train 0 kill")
    assert killed.returncode == -signal.SIGKILL
    assert logs(output) == ["interrupted_result_1_0.txt", "result_0.txt"]
    (again,) = run(output, "--runs", "2")
    assert again.returncode == 0, again.stderr
    assert {"result_0.txt", "result_1.txt"} <= set(logs(output))
    after = {path.name: path.read_bytes() for path in output.glob("results/*/*/result_0*")}
    assert after == before


@pytest.mark.parametrize("moment", ["state", "digest"])
def test_a_run_killed_after_its_end_counts_with_weights_or_not(moment: str, tmp_path: Path) -> None:
    output = tmp_path / "out"
    (killed,) = run(output, mishap=f"{moment} 0 kill")
    assert killed.returncode == -signal.SIGKILL
    assert "the run was killed" in killed.stderr
    assert logs(output) == [KEPT]
    assert_goes_on(output)
    assert [path.name for path in output.glob("checkpoints/**/run_*")] == ["run_0.pt"]


@pytest.mark.parametrize("moment", ["state", "write", "digest"])
def test_a_run_that_missed_its_target_and_is_killed_afterwards_counts_and_tells_of_its_weights(
    moment: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    short = {"eval_every_samples": 32, "max_samples": 64}
    tiny.use(tiny.folder_of("galaxy_shape", timing=short), monkeypatch)
    output = tmp_path / "out"
    (killed,) = run(output, mishap=f"{moment} 0 kill")
    assert killed.returncode == -signal.SIGKILL
    assert logs(output) == ["result_0.txt"]
    weights = [path for path in output.glob("checkpoints/**/*") if path.is_file()]
    assert [path.name for path in weights] == (["run_0.pt"] if moment == "digest" else [])
    assert ("it counts, but its weights are lost; fix: `" in killed.stderr) == (moment != "digest")
    if weights:
        return
    (again,) = re.findall("fix: `(.*)` with another", killed.stderr)
    (made,) = run(tmp_path / "again", *again.split()[2:])
    assert made.returncode == 1
    assert len(list((tmp_path / "again").glob("checkpoints/*/*/run_0.pt"))) == 1


# No space, odd places -----------------------------------------------------------------------------


def test_no_space_for_the_configuration_is_told(tmp_path: Path) -> None:
    (full,) = run(tmp_path / "out", prelude=partial(limit_files, 10))
    assert full.returncode == 2
    assert "cannot write there (File too large); make room" in full.stderr
    assert full.stderr.count("\n") == 1, full.stderr
    assert logs(tmp_path / "out") == []
    assert_goes_on(tmp_path / "out")


def test_no_space_for_the_log_is_told_and_nothing_is_lost(tmp_path: Path) -> None:
    assert_goes_on(tmp_path / "out")
    before = logs(tmp_path / "out")
    (full,) = run(tmp_path / "out", "--runs", "2", prelude=partial(limit_files, 3000))
    assert full.returncode == 2
    assert "cannot write the run log (File too large); this run does not count" in full.stderr
    assert full.stderr.count("\n") == 1, full.stderr
    assert logs(tmp_path / "out") == sorted([*before, "interrupted_result_1_0.txt"])


def test_no_space_for_the_weights(tmp_path: Path) -> None:
    # The place of the weights is taken: as with a full disk, nothing can be written there.
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "checkpoints").touch()
    (full,) = run(tmp_path / "out")
    assert full.returncode == 2
    assert "run 0 counts" in full.stderr
    assert "its weights are lost" in full.stderr
    assert logs(tmp_path / "out") == ["result_0.txt"]


def test_an_output_folder_with_an_odd_name(tmp_path: Path) -> None:
    output = tmp_path / "with space [bold]ü'\"$HOME*"
    (fine,) = run(output)
    assert fine.returncode == 0, fine.stderr
    assert str(output) in fine.stdout
    assert [path.name for path in output.glob("results/*/*/result_*")] == ["result_0.txt"]


def test_another_system_in_the_same_place(tmp_path: Path) -> None:
    (fine,) = run(tmp_path / "out")
    assert fine.returncode == 0, fine.stderr
    (described,) = (tmp_path / "out" / "systems").iterdir()
    facts = json.loads(described.read_text())
    described.write_text(json.dumps(facts | {"processor": "abacus"}))
    (other,) = run(tmp_path / "out", "--runs", "2")
    assert other.returncode == 2
    assert 'holds another system: processor was "abacus"' in other.stderr
    assert logs(tmp_path / "out") == ["result_0.txt"]
