"""Processes that make a site, its size, and how long and with what memory it is built."""

import gzip
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import psutil
import pytest

from cepheid.leaderboard.build import (
    RESULTS_FOR_PROCESSES,
    File,
    choose_processes,
    make_parts,
    make_site_files,
)
from cepheid.rules.definition import Definition
from cepheid.rules.host import ROOT
from tests.compliance.judging import make_site
from tests.compliance.many import write_many
from tests.leaderboard.test_site import build_site
from tests.processes import have_ended, kill_after_a_line


def test_two_processes_make_the_same_files(star_shape: Definition) -> None:
    made = make_site(write_many(Path("out"), 25, [star_shape]))
    alone, together = list(make_site_files(made, 1)), list(make_site_files(made, 2))
    assert dict(alone) == dict(together)
    assert len(alone) == len(together) > 50
    assert together[-1] == alone[-1]  # files.txt


def test_an_error_or_the_end_of_a_process_is_an_error() -> None:
    def fail(part: int) -> list[File]:
        raise ValueError(f"part {part}")

    with pytest.raises(ValueError, match="part 0"):
        list(make_parts(fail, 1, 2))

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


MIB = 2**20
PAGE_MAX = 1_000_000  # bytes of a page as a server sends it, compressed
MANY, SECONDS_MAX, MEMORY_MAX = 2000, 60, 250 * MIB  # for two processors
FEW = 60
FIXED = 32_000  # bytes that a page has whatever the number of results; charts keep 20 of them
START_MAX = 150_000  # of the start page, the first that a reader waits for


def find_limit(count: int) -> int:
    return FIXED + (PAGE_MAX - FIXED) * count // MANY


def test_pages_stay_small(star_shape: Definition) -> None:
    """No page takes a larger share of its limit than there is of the results."""
    files = build_site(write_many(Path("out"), FEW, [star_shape]))
    assert len(json.loads(files["results.json"])["results"]) == FEW
    sizes = {
        name: len(gzip.compress(text.encode()))
        for name, text in files.items()
        if name.endswith(".html")
    }
    assert {name: size for name, size in sizes.items() if size > find_limit(FEW)} == {}


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(MANY // 4, marks=pytest.mark.promise),
        pytest.param(MANY, marks=pytest.mark.slow),  # 90 s of the processors
    ],
)
def test_many_results(count: int, tmp_path: Path) -> None:
    """The wall time holds on an idle machine; that of the processors is counted on a busy one."""
    write_many(tmp_path / "many", count)
    command = [sys.executable, "tools/cli.py", "leaderboard", str(tmp_path / "many")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    before, memory = os.times(), 0
    with subprocess.Popen(
        [*command, "--output", str(tmp_path / "site")], cwd=ROOT, env=environment
    ) as process:
        while process.poll() is None:
            memory = max(memory, _measure_memory(process.pid))
            time.sleep(0.2)
    assert process.returncode == 1  # some results are rejected
    after = os.times()
    used = sum(after[2:4]) - sum(before[2:4])
    assert used / min(2, os.cpu_count() or 1) <= SECONDS_MAX * count / MANY
    assert memory <= MEMORY_MAX
    found = json.loads((tmp_path / "site" / "results.json").read_text(encoding="utf-8"))["results"]
    assert len(found) == count
    assert sum(result["verdict"] == "scored" for result in found) > count * 3 // 4
    pages = (tmp_path / "site").rglob("*.html")
    sizes = {page.name: len(gzip.compress(page.read_bytes())) for page in pages}
    assert {name: size for name, size in sizes.items() if size > find_limit(count)} == {}
    assert sizes["index.html"] <= START_MAX


def _measure_memory(pid: int) -> int:
    try:
        root = psutil.Process(pid)
        return max(one.memory_info().rss for one in (root, *root.children(recursive=True)))
    except psutil.NoSuchProcess:
        return 0
