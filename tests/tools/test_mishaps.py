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
from tests.compliance.asserting import Patch, assert_says, require
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


def run_one(output: Path, *arguments: str, code: int = 0, **how: Any) -> Ended:
    """Run the command on one rank, which must end with an exit code and without a traceback."""
    (ended,) = run(output, *arguments, **how)
    assert (ended.returncode, "Traceback" in ended.stderr) == (code, False), ended.stderr
    return ended


def run_two(output: Path, *arguments: str, codes: Any = (2, 2), **how: Any) -> list[Ended]:
    """Run the command on two ranks, which must end with these exit codes."""
    both = run(output, *arguments, ranks=2, **how)
    assert [one.returncode for one in both] == list(codes), [one.stderr for one in both]
    return both


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


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
    run_one(output)
    assert "result_0.txt" in logs(output)


KEPT = "interrupted_result_0_0.txt"


@pytest.mark.parametrize(
    ("moment", "rank"),
    [("prepare", 0), ("build", 0), ("build", 1), ("train", 0), ("train", 1), ("evaluate", 1)],
)
def test_a_rank_that_is_killed_ends_all(moment: str, rank: int, out: Path) -> None:
    codes = (-signal.SIGKILL, 2) if rank == 0 else (2, -signal.SIGKILL)
    both = run_two(out, mishap=f"{moment} {rank} kill", codes=codes)
    assert not any("Traceback" in one.stderr for one in both)
    if moment == "prepare":  # before there is a log
        assert logs(out) == []
        return
    who = "the run was killed" if rank == 0 else "another rank has ended without a message"
    assert who in both[0].stderr
    assert "cepheid" not in both[1].stderr
    assert logs(out) == [KEPT]
    record = last_record(out, KEPT)
    if moment == "build":
        assert record["key"] == "init_aborted"
        return
    assert record["metadata"]["status"] == "aborted"
    assert record["metadata"]["samples_count"] == (32 if moment == "train" else 64)
    assert findings(out, KEPT) == {"T17"}  # a run that did not converge
    assert_goes_on(out)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_rank_that_fails_says_why(rank: int, out: Path) -> None:
    both = run_two(out, mishap=f"train {rank} raise")
    assert "MemoryError: no memory left on this rank" in both[rank].stderr
    assert "cepheid" not in both[1 - rank].stderr
    assert "Traceback" not in both[1 - rank].stderr
    reason = last_record(out, KEPT)["metadata"]["reason"]
    assert reason.endswith("MemoryError: no memory left on this rank")
    assert ("rank 1" in reason) == (rank == 1)


def test_a_rank_that_cannot_begin_says_why_and_no_run_begins(out: Path) -> None:
    both = run_two(out, mishap="create 1 refuse")
    assert [one.stderr for one in both] == ["", "cepheid: bad data on this rank: delete them\n"]
    assert logs(out) == []


@pytest.mark.parametrize("arguments", [["--nonsense"], ["--set", "global_batch_size=33"]])
def test_wrong_use_on_several_ranks_is_told_once(arguments: list[str], out: Path) -> None:
    (told,) = (one.stderr for one in run_two(out, *arguments) if one.stderr)
    assert told.count("cepheid") <= 2  # argparse prints usage, too
    assert not out.exists()


@pytest.mark.parametrize(
    ("moment", "reason"),
    [
        ("train", "the training loss is nan"),
        ("evaluate", "the quality is not finite (e_rmse, nll)"),
    ],
)
def test_a_number_that_is_not_finite_ends_all(moment: str, reason: str, out: Path) -> None:
    first, _ = run_two(out, mishap=f"{moment} 1 nan", codes=(1, 1))
    assert "a lower learning rate or precision=fp32 may help" in first.stdout
    assert logs(out) == ["result_0.txt"]  # such a run counts (T15)
    stop = last_record(out, "result_0.txt")["metadata"]
    assert (stop["status"], stop["reason"][: len(reason)]) == ("aborted", reason)
    (log,) = out.rglob("result_0.txt")
    assert "NaN" not in log.read_text()


def test_ranks_that_cannot_meet(out: Path, monkeypatch: Patch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.setattr("tests.tools.test_mishaps.find_free_port", lambda: port)
        first, second = start(out, ranks=2)
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
def test_a_rank_that_is_stopped_is_named(rank: int, out: Path, monkeypatch: Patch) -> None:
    """The other one says whom it waits for, and gives up after the time that was set."""
    monkeypatch.setenv("CEPHEID_RANK_TIMEOUT", "3")
    _, other = stop_a_rank(rank, out)
    assert other.returncode == 2
    assert re.search(rf"cepheid: waiting for rank {rank} \(.*giving up after 3 s", other.stderr)
    assert re.search(
        rf"cepheid: rank {rank} \(.*did not answer for \d s: stopped, or", other.stderr
    )
    assert "Traceback" not in other.stderr
    assert logs(out) == [KEPT]
    assert_blames(rank, out)


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
def test_a_stopped_rank_is_named_before_a_busy_one(out: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("SILENT_SECONDS", "12")
    stopped, other = stop_a_rank(1, out)
    assert other.returncode == stopped.returncode == 2
    assert re.search(r"cepheid: rank 1 .*did not answer for [\d,]+ s: stopped", other.stderr)
    assert "killed" not in other.stderr + stopped.stderr
    assert logs(out) == [KEPT]
    assert_blames(1, out)
    assert_goes_on(out)


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
def test_a_rank_that_never_comes_is_named(rank: int, out: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("CEPHEID_RANK_TIMEOUT", "3")
    both = start(out, ranks=2)
    both[rank].kill()
    (other,) = end_all([both[1 - rank]])
    assert other.returncode == 2
    assert f"cepheid: waiting for rank {rank}" in other.stderr
    assert ("rank 1 of 2 did not come within 3 s" if rank else "could not meet at") in other.stderr
    assert "Traceback" not in other.stderr


@pytest.mark.parametrize("seconds", ["soon", "0", "nan"])
def test_a_timeout_is_a_number_of_seconds(seconds: str, out: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("CEPHEID_RANK_TIMEOUT", seconds)
    said = run_two(out)[0].stderr
    assert f"CEPHEID_RANK_TIMEOUT={seconds}: expected seconds above 0" in said


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


def test_a_finished_run_is_not_lost_to_ctrl_c_while_its_data_are_digested(out: Path) -> None:
    (process,) = start(out, "--runs", "2", mishap="digest 0 wait")
    wait_for(out.with_name("happened"))
    process.send_signal(signal.SIGINT)
    time.sleep(0.1)
    let_go_on(out)
    (ended,) = end_all([process])
    assert ended.returncode == 1, ended.stderr
    assert "cepheid: this run is finished. Its data are read once more" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "run 0: all targets reached" in ended.stdout
    assert logs(out) == ["result_0.txt"], "no further run begins"
    assert findings(out, "result_0.txt") == set()
    run_one(out, "--runs", "2")
    assert logs(out) == ["result_0.txt", "result_1.txt"]


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


def test_a_data_file_that_is_cut_short_in_a_run_is_told(out: Path) -> None:
    ended = run_one(out, mishap="train 0 bus", code=-signal.SIGKILL)
    assert "stopped by SIGBUS: a mapped file could not be read" in ended.stderr
    assert logs(out) == [KEPT]
    reason = last_record(out, KEPT)["metadata"]["reason"]
    assert reason.startswith("broken off: stopped by SIGBUS: a mapped file")
    assert_goes_on(out)


def let_go_on(output: Path) -> None:
    output.with_name("happened.seen").touch()


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} is not there"
        time.sleep(0.02)


def test_two_runs_into_the_same_folder(out: Path) -> None:
    """The second is told who holds the folder, and changes nothing."""
    (first,) = start(out, mishap="train 0 wait")
    wait_for(out.with_name("happened"))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    said = run_one(out, code=2).stderr
    assert f"another `cepheid run` is writing there (process {first.pid}); wait" in said
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    let_go_on(out)
    (whole,) = end_all([first])
    assert whole.returncode == 0, whole.stderr
    assert logs(out) == ["result_0.txt"]
    assert "nothing to run" in run_one(out).stdout


def test_two_that_start_at_the_same_moment(out: Path) -> None:
    both = end_all([*start(out), *start(out)])
    assert logs(out) == ["result_0.txt"]
    assert findings(out, "result_0.txt") == set()
    # The later one is refused, or finds that all is done, if it was slow.
    first, second = sorted(both, key=lambda one: "all targets reached" not in one.stdout)
    assert first.returncode == 0, first.stderr
    refused = second.returncode == 2 and "another `cepheid run` is writing there" in second.stderr
    assert refused or "nothing to run" in second.stdout


def test_a_clock_that_is_set_back_is_told_at_once_and_later_with_a_way_on(out: Path) -> None:
    whole = run_one(out, mishap="train 0 clock", code=1)  # the log is rejected
    told, _, rest = whole.stdout.partition("all targets reached")
    assert "this run can no longer count:" in told
    assert re.search(r"\.partial:\d+: T4\.", told)
    assert "fix: " in told
    assert "T4" not in rest, "each finding is told once"
    assert "T4" in findings(out, "result_0.txt")
    (log,) = out.glob("results/*/*/result_0.txt")
    for runs, done in (("1", "nothing to run"), ("2", "all targets reached"), ("2", "nothing")):
        said = run_one(out, "--runs", runs, code=1).stdout
        assert done in said
        assert re.search(rf"{re.escape(str(log))}:\d+: T4\.", said)
        assert said.count(f"{log}: the checker rejects this log, so the result has no") == 1
        assert "move the log out of the output folder" in said
        assert "result_1.txt: the checker rejects" not in said
    rejected = log.rename(out.with_name("rejected.txt"))
    assert "the checker rejects" not in run_one(out, "--runs", "2").stdout
    seeds = [re.search(r'"key": "seed", "value": (\d+)', at.read_text()) for at in (log, rejected)]
    first, second = (require(found)[1] for found in seeds)
    assert first == second


def test_a_result_that_can_have_no_score_is_told(out: Path) -> None:
    """One run may miss its targets, a second one may not."""
    assert "the result has no score" not in run_one(out, mishap="evaluate 0 nan", code=1).stdout
    said = run_one(out, "--runs", "2", mishap="evaluate 0 nan", code=1).stdout
    assert "the result has no score as it is:" in said
    assert re.search(r"T17\.\S+ 2 of 2 runs did not converge", said)


def test_killed_between_two_runs_of_one_command(out: Path) -> None:
    """What is made stays, what was going on does not count, the same command makes the rest."""
    run_one(out)
    before = {path.name: path.read_bytes() for path in out.glob("results/*/*/result_*")}
    run_one(out, "--runs", "3", mishap="train 0 kill", code=-signal.SIGKILL)
    assert logs(out) == ["interrupted_result_1_0.txt", "result_0.txt"]
    run_one(out, "--runs", "2")
    assert {"result_0.txt", "result_1.txt"} <= set(logs(out))
    after = {path.name: path.read_bytes() for path in out.glob("results/*/*/result_0*")}
    assert after == before


@pytest.mark.parametrize("moment", ["state", "digest"])
def test_a_run_killed_after_its_end_counts_with_weights_or_not(moment: str, out: Path) -> None:
    assert "the run was killed" in run_one(out, mishap=f"{moment} 0 kill", code=-9).stderr
    assert logs(out) == [KEPT]
    assert_goes_on(out)
    assert [path.name for path in out.glob("checkpoints/**/run_*")] == ["run_0.pt"]


@pytest.mark.parametrize("moment", ["state", "write", "digest"])
def test_a_run_that_missed_and_is_killed_afterwards_counts_and_tells_of_its_weights(
    moment: str, out: Path, monkeypatch: Patch
) -> None:
    short = {"eval_every_samples": 32, "max_samples": 64}
    tiny.use(tiny.folder_of("galaxy_shape", timing=short), monkeypatch)
    said = run_one(out, mishap=f"{moment} 0 kill", code=-signal.SIGKILL).stderr
    assert logs(out) == ["result_0.txt"]
    weights = [path for path in out.glob("checkpoints/**/*") if path.is_file()]
    assert [path.name for path in weights] == (["run_0.pt"] if moment == "digest" else [])
    assert ("it counts, but its weights are lost; fix: `" in said) == (moment != "digest")
    if not weights:
        (again,) = re.findall("fix: `(.*)` with another", said)
        run_one(out.with_name("again"), *again.split()[2:], code=1)
        assert len(list(out.with_name("again").glob("checkpoints/*/*/run_0.pt"))) == 1


def test_no_space_for_the_configuration_is_told(out: Path) -> None:
    said = run_one(out, prelude=partial(limit_files, 10), code=2).stderr
    assert "cannot write there (File too large); make room" in said
    assert said.count("\n") == 1, said
    assert logs(out) == []
    assert_goes_on(out)


def test_no_space_for_the_log_is_told_and_nothing_is_lost(out: Path) -> None:
    assert_goes_on(out)
    before = logs(out)
    said = run_one(out, "--runs", "2", prelude=partial(limit_files, 3000), code=2).stderr
    assert "cannot write the run log (File too large); this run does not count" in said
    assert said.count("\n") == 1, said
    assert logs(out) == sorted([*before, "interrupted_result_1_0.txt"])


def test_no_space_for_the_weights(out: Path) -> None:
    # The place of the weights is taken: as with a full disk, nothing can be written there.
    out.mkdir()
    (out / "checkpoints").touch()
    assert_says(run_one(out, code=2).stderr, "run 0 counts", "its weights are lost")
    assert logs(out) == ["result_0.txt"]


def test_an_output_folder_with_an_odd_name(tmp_path: Path) -> None:
    output = tmp_path / "with space [bold]ü'\"$HOME*"
    assert str(output) in run_one(output).stdout
    assert [path.name for path in output.glob("results/*/*/result_*")] == ["result_0.txt"]


def test_another_system_in_the_same_place(out: Path) -> None:
    run_one(out)
    (described,) = (out / "systems").iterdir()
    facts = json.loads(described.read_text())
    described.write_text(json.dumps(facts | {"processor": "abacus"}))
    said = run_one(out, "--runs", "2", code=2).stderr
    assert 'holds another system: processor was "abacus"' in said
    assert logs(out) == ["result_0.txt"]
