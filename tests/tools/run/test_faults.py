"""Faults of the system around commands: nothing is lost, and a traceback is for a bug of ours."""

import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cepheid.rules.host import ROOT
from cepheid.tools.leaderboard import folder
from tests import assert_refused, tiny
from tests.compliance.asserting import Patch
from tests.processes import Ended
from tests.tools import scripted
from tests.tools.run.faults import (
    DISKS,
    PROCESSES,
    PROGRAM,
    Command,
    explain_no_sandbox,
    read_code,
    run_under,
    run_until,
)

ACME = "{at}/submissions/plain_tensorflow"
FEW = {"train_samples": 6, "evaluation_samples": 10}
TINY = tiny.folder_of("galaxy_shape", timing=scripted.TIMING, data=FEW, data_digest=None)
COMMANDS = [
    Command("check", f"check {ACME}", {**PROGRAM, **PROCESSES}),
    Command("pack", f"pack {ACME}", DISKS, replaces=("manifest.json",)),
    Command(  # a site among others
        "publish", "round publish {at}/submissions --output {at}/v1.0", {**PROCESSES, **DISKS}
    ),
    Command(
        "data", "data galaxy_shape --scale mini --data {at}/data", {**PROCESSES, **DISKS},
        benchmarks=TINY,
    ),
    Command(
        "run", "--runs 1 --output {at}/runs",
        {**PROCESSES, **DISKS, "no stream": PROGRAM["no stream"]}, "tests.tools.scripted:main",
        TINY, is_stepped=True,
    ),
]  # fmt: skip
WRITING = COMMANDS[1:]
LEFT_OVERS = ("*.partial", ".site.*", ".v1.0.*")


def lay_out(at: Path) -> dict[str, bytes]:
    """Make the folder that a command works in; return what lies there."""
    shutil.copytree(ROOT / "submissions" / "plain_tensorflow", Path(ACME.format(at=at)))
    return read(at)


def read(at: Path) -> dict[str, bytes]:
    files = [path for path in at.rglob("*") if path.is_file()]
    return {path.relative_to(at).as_posix(): path.read_bytes() for path in files}


def list_results(at: Path) -> set[str]:
    """List what lies below a folder, but for what a call that was broken off may leave for good."""
    return {name for name in read(at) if not re.search("/interrupted_|/journal.jsonl$", name)}


def assert_nothing_is_lost(
    command: Command, at: Path, before: dict[str, bytes], said: str, *, was_killed: bool = False
) -> None:
    """Whatever happened, what was there is there; half a file is only left by a kill."""
    after = read(at)
    changed = [name for name in before if after.get(name) != before[name]]
    assert [name for name in changed if not name.endswith(command.replaces or "/")] == [], said
    assert all(after.get(name) for name in changed), said
    left = [path for pattern in LEFT_OVERS for path in at.rglob(pattern)]
    assert was_killed or not list(filter(is_half_written, left)), said


def is_half_written(path: Path) -> bool:
    """Not so are empty folders and preparations of data: another call clears, or goes on."""
    return path.is_file() or (path.parent.name != "data" and any(path.iterdir()))


@dataclass(frozen=True)
class Usual:
    """A command without a fault: its exit code, how often it changes something, what it leaves."""

    code: int
    changes: int
    results: set[str]


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Command], Usual]:
    """Return what runs a command without a fault, once for all tests."""
    known: dict[str, Usual] = {}

    def run(command: Command) -> Usual:
        if command.name not in known:
            at = tmp_path_factory.mktemp("usual") / "usual"
            lay_out(at)
            whole, changes = run_until(0, "", command, at)
            assert "Traceback" not in whole.stderr
            known[command.name] = Usual(read_code(whole), changes, list_results(at))
        return known[command.name]

    return run


def describe(ended: Ended) -> str:
    return f"{ended.returncode}: {ended.stdout[-1000:]}\n{ended.stderr[-3000:]}"


@pytest.mark.promise
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_no_fault_costs_a_file_or_ends_in_a_traceback(
    command: Command, tmp_path: Path, usual: Callable[[Command], Usual]
) -> None:
    whole = usual(command)
    for fault, (how, can_succeed) in command.faults.items():
        if "bwrap" in how and explain_no_sandbox():
            continue
        at = tmp_path / fault.replace(" ", "-")
        before = lay_out(at)
        ended = run_under(fault, command, at)
        said = f"{fault}: {describe(ended)}"
        assert "Traceback" not in ended.stderr or fault == "little memory", said
        assert_nothing_is_lost(command, at, before, said)
        if can_succeed:
            assert read_code(ended) == whole.code, said
        elif read_code(ended) == whole.code:  # it wrote nothing that was too much
            assert fault != "full stdout" or not ended.stdout, said
        elif fault == "a clock that is set back":
            assert (read_code(ended), command.is_stepped) == (1, True), said
            assert "T4.step_back" in ended.stdout, said
            continue  # the log must be moved away
        elif fault != "little memory":  # where Python itself may not start
            assert read_code(ended) == 2, said
            assert "\ncepheid: " in f"\n{ended.stderr}", said
        if read_code(ended) != whole.code:  # then the same command finishes
            again, _ = run_until(0, "", command, at)
            assert read_code(again) == whole.code, f"{fault}, again: {describe(again)}"
        assert list_results(at) == whole.results, fault
        shutil.rmtree(at)


@pytest.mark.promise
@pytest.mark.parametrize(
    ("command", "what"),
    [
        *(pytest.param(one, what, id=f"{what} in {one.name}") for one in WRITING
          for what in ("SIGKILL", "SIGTERM", "ENOSPC")),
        pytest.param(WRITING[0], "SIGHUP", id="SIGHUP"),
    ],
)  # fmt: skip
def test_what_is_broken_off_anywhere_can_be_given_again(
    command: Command, what: str, tmp_path: Path, usual: Callable[[Command], Usual]
) -> None:
    """At the first change, the last one, and between. Signals that are handled: between alone."""
    if what == "SIGHUP" and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        pytest.skip("nohup runs these tests, and SIGHUP is ignored under it")
    whole = usual(command)
    changes = whole.changes
    within = {"SIGKILL": changes // 3, "ENOSPC": 2 * changes // 3}.get(what, changes // 2)
    ends = {1, changes} if what in ("SIGKILL", "ENOSPC") else set()
    for count in sorted({within or 1, *ends}):
        at = tmp_path / str(count)
        before = lay_out(at)
        ended, _ = run_until(count, what, command, at)
        said = f"change {count} of {changes}: {describe(ended)}"
        codes = {"SIGKILL": (-9,), "SIGTERM": (1,), "SIGHUP": (1,)}.get(what, (2,))
        assert read_code(ended) in codes, said
        assert "Traceback" not in ended.stderr, said
        assert_nothing_is_lost(command, at, before, said, was_killed=what == "SIGKILL")
        again, _ = run_until(0, "", command, at)
        assert read_code(again) == whole.code, f"{said}\nagain: {describe(again)}"
        lost = {name for name in whole.results if "run_0" in name}
        lost = lost if "its weights are lost" in ended.stderr else set()
        assert list_results(at) == whole.results - lost, said
        assert_nothing_is_lost(command, at, before, said)
        assert not [path for pattern in LEFT_OVERS for path in at.rglob(pattern)], said


def build_site(output: Path) -> None:
    folder.write(output, iter([("index.html", b"new"), ("more/page.html", b"page")]))


def test_there_is_a_site_at_all_times(tmp_path: Path) -> None:
    """Also where a reader looks while a site replaces another one."""
    output = tmp_path / "site"
    build_site(output)
    looking = os.fork()
    if looking == 0:
        missed = 0
        for _ in range(20_000):
            missed += not os.path.exists(output)
        os._exit(min(missed, 1))
    for _ in range(50):
        build_site(output)
    assert os.waitpid(looking, 0)[1] == 0


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_killed_site_is_removed(can_exchange: bool, tmp_path: Path, monkeypatch: Patch) -> None:
    output = tmp_path / "site"
    build_site(output)
    if not can_exchange:
        monkeypatch.setattr(folder, "_exchange", lambda *_: False)

    def stop_within() -> Iterator[tuple[str, bytes]]:
        yield "index.html", b"half"
        (tmp_path / "happened").touch()
        time.sleep(60)

    writing = os.fork()
    if writing == 0:
        folder.write(output, stop_within())
        os._exit(0)
    while not (tmp_path / "happened").exists():
        time.sleep(0.01)
    build_site(output)  # beside one that still writes: each keeps its own
    assert len(list(tmp_path.glob(".site.*"))) == 1
    os.kill(writing, signal.SIGKILL)
    os.waitpid(writing, 0)
    build_site(output)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["happened", "site"]
    assert (output / "index.html").read_bytes() == b"new"


def test_a_site_that_a_killed_call_had_moved_comes_back(tmp_path: Path) -> None:
    output, work = tmp_path / "site", tmp_path / ".site.abcd"
    build_site(output)
    (work / "fresh").mkdir(parents=True)
    output.rename(work / "before")
    (tmp_path / ".site.mine").mkdir()
    (tmp_path / ".site.mine" / "notes").touch()

    def fail() -> Iterator[tuple[str, bytes]]:
        assert (output / "index.html").read_bytes() == b"new"
        raise OSError(28, "No space left on device")
        yield

    assert_refused("No space left", folder.write, output, fail())
    assert sorted(path.name for path in tmp_path.iterdir()) == [".site.mine", "site"]


@pytest.mark.parametrize("decoder", [None, "png"])
def test_an_image_that_was_damaged_after_it_was_prepared_is_named(decoder: str | None) -> None:
    np = pytest.importorskip("numpy", reason="data need numpy")
    decoding = pytest.importorskip("cepheid.reference.data.image_files.decoding")
    from cepheid.reference.data.image_files.packing import PackedFiles

    content = np.frombuffer(b"\x89PNG\r\n\x1a\nand then nothing", np.uint8)
    decode = decoding.decode_png if decoder else None
    files = PackedFiles(content, np.array([len(content)]), np.array([0]), decode)
    assert_refused(r"image 0 of the data cannot be decoded .* --verify", files.decode, 0)
