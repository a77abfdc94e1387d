"""A site that several processes make has the same files as one that a single process makes."""

import multiprocessing
import os
import signal
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest

from cepheid.leaderboard.build import (
    RESULTS_FOR_PROCESSES,
    File,
    choose_processes,
    make_parts,
    make_site_files,
)
from cepheid.rules.definition import Definition
from tests.compliance.judging import make_site
from tests.compliance.many import write_many
from tests.processes import have_ended, kill_after_a_line


def test_two_processes_make_the_same_files(star_shape: Definition) -> None:
    made = make_site(write_many(Path("out"), 25, [star_shape]))
    alone, together = list(make_site_files(made, 1)), list(make_site_files(made, 2))
    assert dict(alone) == dict(together)
    assert len(alone) == len(together) > 50
    assert together[-1] == alone[-1]  # files.txt


def test_an_error_in_a_process_is_raised() -> None:
    def fail(part: int) -> list[File]:
        raise ValueError(f"part {part}")

    with pytest.raises(ValueError, match="part 0"):
        list(make_parts(fail, 1, 2))


def test_a_process_that_is_killed_is_an_error() -> None:
    def die(part: int) -> list[File]:
        os.kill(os.getpid(), signal.SIGKILL)
        return []

    with pytest.raises(BrokenProcessPool):
        list(make_parts(die, 2, 2))


def test_parts_that_are_not_begun_are_dropped_with_their_caller(tmp_path: Path) -> None:
    def write(part: int) -> list[File]:
        (tmp_path / str(part)).touch()
        time.sleep(0.02)
        return [(str(part), b"")]

    files = make_parts(write, 100, 2)
    next(files)
    files.close()  # as where the disk is full
    assert len(list(tmp_path.iterdir())) < 20
    assert multiprocessing.active_children() == []


def test_processes_end_with_a_killed_command() -> None:
    script = (
        "import os, time\nfrom cepheid.leaderboard.build import make_parts\n"
        "def make(part):\n    return [(str(os.getpid()), b'')]\n"
        "files = make_parts(make, 2, 2)\nprint(next(files)[0], flush=True)\ntime.sleep(60)\n"
    )
    _, made = kill_after_a_line(script)
    assert len(made) == 2
    assert have_ended(made)


def test_macos_makes_pages_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cepheid.leaderboard.build.usable_processors", lambda: 8)
    monkeypatch.setattr(sys, "platform", "darwin")
    assert choose_processes(RESULTS_FOR_PROCESSES) == 1
    monkeypatch.setattr(sys, "platform", "linux")
    assert choose_processes(RESULTS_FOR_PROCESSES) == 8
    assert choose_processes(RESULTS_FOR_PROCESSES - 1) == 1
