"""Faults of the system around commands: nothing is lost, and a traceback is for a bug of ours."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cepheid.rules.errors import UserError
from cepheid.rules.host import ROOT
from cepheid.tools.leaderboard import folder

GIVEN = ROOT / "submissions" / "plain_tensorflow"
# Arguments of commands that work on a copy of a submission, {it}, and write to {out}.
COMMANDS = {
    "check": ["check", "{it}"],
    "check as JSON": ["check", "{it}", "--format", "json"],
    "summary": ["summary", "{it}"],
    "pack": ["pack", "{it}"],
    "leaderboard": ["leaderboard", "{it}", "--output", "{out}/site"],
    "list": ["run", "--list"],
    "plan": ["run", "galaxy_shape", "--scale", "mini", "--dry-run", "--output", "{out}/run"],
}
# How a shell starts a command under a fault, and whether what it does can still succeed.
FAULTS = {
    "none": ("exec", True),
    "no stdout": ("exec >&-; exec", True),
    "no stderr": ("exec 2>&-; exec", True),
    "no stdin": ("exec <&-; exec", True),
    "no stream": ("exec <&- >&- 2>&-; exec", True),
    "full stdout": ("exec >/dev/full; exec", False),
    "no home": ("unset HOME; exec", True),
    "a home that is not there": ("export HOME=/nowhere; exec", True),
    "no variables": ("exec env -i OMP_NUM_THREADS=1", True),
    "64 open files": ("ulimit -n 64; exec", True),
    "files of 1 kB": ("ulimit -f 1; exec", False),
    "1 GB of memory": ("ulimit -v 1000000; exec", True),
    "little memory": ("ulimit -v 60000; exec", False),
}


@pytest.fixture
def given(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GIVEN, tmp_path / "plain_tensorflow"))


def start(arguments: list[str], given: Path, out: Path, fault: str) -> subprocess.Popen[str]:
    line = [text.format(it=given, out=out) for text in arguments]
    script = f'{FAULTS[fault][0]} "$@"'
    command = ["bash", "-c", script, "bash", sys.executable, "-m", "cepheid.tools.cli", *line]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd=ROOT)


def read(root: Path) -> dict[str, bytes]:
    files = [path for path in root.rglob("*") if path.is_file()]
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


@pytest.mark.promise
@pytest.mark.parametrize("name", COMMANDS)
def test_no_fault_costs_a_file_or_ends_in_a_traceback(
    name: str, given: Path, tmp_path: Path
) -> None:
    before = read(given)
    usual = None
    for fault, (_, can_succeed) in FAULTS.items():
        out = tmp_path / fault.replace(" ", "-")
        out.mkdir()
        process = start(COMMANDS[name], given, out, fault)
        printed, told = process.communicate(timeout=120)
        usual = process.returncode if usual is None else usual
        said = f"{fault}: {process.returncode}: {told}"
        assert "Traceback" not in told or fault == "little memory", said
        if can_succeed:
            assert process.returncode == usual, said
        elif process.returncode == 0:  # it wrote nothing that was too much
            assert fault != "full stdout" or not printed, said
        after = read(given)
        assert {path: after.get(path) for path in before if path != "manifest.json"} == {
            path: content for path, content in before.items() if path != "manifest.json"
        }, said
        assert not [path for path in out.rglob("*") if path.name.endswith(".partial")], said


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
def test_a_killed_leaderboard_leaves_nothing_for_long(
    can_exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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

    with pytest.raises(UserError, match="No space left"):
        folder.write(output, fail())
    assert sorted(path.name for path in tmp_path.iterdir()) == [".site.mine", "site"]


@pytest.mark.parametrize("decoder", [None, "png"])
def test_an_image_that_was_damaged_after_it_was_prepared_is_named(decoder: str | None) -> None:
    np = pytest.importorskip("numpy", reason="data need numpy")
    decoding = pytest.importorskip("cepheid.reference.data.image_files.decoding")
    from cepheid.reference.data.image_files.packing import PackedFiles

    content = np.frombuffer(b"\x89PNG\r\n\x1a\nand then nothing", np.uint8)
    decode = decoding.decode_png if decoder else None
    files = PackedFiles(content, np.array([len(content)]), np.array([0]), decode)
    with pytest.raises(UserError, match=r"image 0 of the data cannot be decoded .* --verify"):
        files.decode(0)
