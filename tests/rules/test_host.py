"""Files that appear as a whole, and the processors of a machine."""

import os
import signal
import time
from pathlib import Path

import pytest

from cepheid.rules.errors import cannot_write
from cepheid.rules.host import atomic_path, atomic_write, end_on_interruption, usable_processors
from tests.full_disk import files_end_after
from tests.processes import run


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _write_half(path: Path) -> None:
    with atomic_path(path) as temporary:
        temporary.write_bytes(b"half")
        raise KeyboardInterrupt


@pytest.mark.parametrize("content", ["größer\n", b"\x00\xff"])
def test_writes_a_file_and_nothing_else(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "result.json"
    path.write_text("before")
    atomic_write(path, content)
    assert path.read_bytes() == (content.encode() if isinstance(content, str) else content)
    assert names_in(tmp_path) == ["result.json"]


def test_a_full_disk_leaves_the_file_from_before(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text("before")
    with files_end_after(10), pytest.raises(OSError, match="File too large"):
        atomic_write(path, "x" * 100)
    assert path.read_text() == "before"
    assert names_in(tmp_path) == ["result.json"]


def test_a_file_appears_only_if_the_block_succeeds(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    with pytest.raises(KeyboardInterrupt):
        _write_half(path)
    assert not names_in(tmp_path)
    with atomic_path(path, sync=False) as temporary:
        temporary.write_bytes(b"whole")
        assert not path.exists()
    assert path.read_bytes() == b"whole"


def test_two_processes_do_not_share_a_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "table.csv"
    with atomic_path(path) as first:
        first.write_text("first")
        monkeypatch.setattr("os.getpid", lambda: 0)
        atomic_write(path, "second")
    assert path.read_text() == "first"


def test_the_message_names_the_place_and_the_reason() -> None:
    error = cannot_write(Path("out/a.json"), OSError(28, "No space left on device"))
    assert str(error) == (
        "out/a.json: cannot write there (No space left on device); "
        "make room or choose another place"
    )


def test_there_is_a_processor() -> None:
    assert usable_processors() >= 1


def _lose_the_interruption() -> None:
    """A library that catches whatever is raised while it is imported."""
    with end_on_interruption(1):
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)
        except BaseException:
            pass
    print("the interruption was lost")


def test_ctrl_c_is_not_lost_while_modules_are_imported() -> None:
    ended = run("tests.rules.test_host:_lose_the_interruption")
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "cepheid: interrupted\n")
    before = signal.getsignal(signal.SIGINT)
    with end_on_interruption(1):
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
