"""Every submitted log is opened and parsed once, by whichever command and in whichever process."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cepheid.compliance.judge import unit
from cepheid.compliance.read import powerlog
from cepheid.compliance.read.log import runlog
from cepheid.compliance.read.log.runlog import RunLog
from cepheid.rules import definition
from cepheid.rules.definition import Definition
from cepheid.tools import build_leaderboard, check_compliance, pack_submission, summarize_results
from tests.compliance.builder import SYSTEM, run_records, write_log, write_power, write_result

Main = Callable[[list[str]], int]
WATCHED: list[int] = []  # the descriptor of the file that lists what is opened


def _list_opened(event: str, arguments: tuple[object, ...]) -> None:
    """Write down each log that this process, or one forked from it, opens."""
    if event == "open" and WATCHED and str(arguments[0]).endswith((".txt", ".csv")):
        os.write(WATCHED[0], f"{os.getpid()} {os.path.abspath(str(arguments[0]))}\n".encode())


sys.addaudithook(_list_opened)  # a hook cannot be removed; without WATCHED it does nothing


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], list[tuple[str, Path]]]]:
    """The process and the path of each log that was opened, in order."""
    path = tmp_path / "opened"
    WATCHED.append(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND))
    yield lambda: [
        (process, Path(name))
        for process, name in (line.split(" ", 1) for line in path.read_text().splitlines())
    ]
    os.close(WATCHED.pop())


@pytest.fixture
def submissions(star_shape: Definition) -> Path:
    """Two submitters with manifests, a result of each kind, an interrupted run, power logs."""
    for name in ("acme", "umbrella"):
        root = Path("submissions", name)
        system = {**SYSTEM, "submitter": name}
        folder = write_result(root, star_shape, system=system)
        write_result(root, definition.load("star_images", "mini"), system=system)
        records = run_records(star_shape, 1, system=system)
        write_log(folder / "interrupted_0.txt", records[: len(records) // 2])
        for index in range(5):
            records = run_records(star_shape, index, system=system)
            write_power(folder, records, index, {"node0": 1000.0})
        assert pack_submission.main([str(root)]) == 0
    return Path("submissions")


def logs_below(folder: Path) -> list[Path]:
    return sorted(
        path.resolve()
        for pattern in ("results/*/*/*.txt", "results/*/*/*.csv")
        for path in folder.glob(f"*/{pattern}")
    )


COMMANDS: dict[str, tuple[Main, list[str]]] = {
    "check": (check_compliance.main, ["--jobs", "1"]),
    "check in two processes": (check_compliance.main, ["--jobs", "2"]),
    "summary": (summarize_results.main, []),
    "leaderboard": (build_leaderboard.main, ["--output", "site"]),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_each_log_is_opened_once(
    command: str, submissions: Path, opened: Callable[[], list[tuple[str, Path]]]
) -> None:
    main, options = COMMANDS[command]
    assert main([str(submissions), *options]) == 0
    logs = logs_below(submissions)
    assert len(logs) == 2 * (5 + 5 + 1 + 5)
    assert sorted(path for _, path in opened() if path in set(logs)) == logs
    here = {process == str(os.getpid()) for process, path in opened() if path in set(logs)}
    assert here == {command != "check in two processes"}, "two processes leave none to the parent"


def test_packing_opens_each_log_once(
    submissions: Path, opened: Callable[[], list[tuple[str, Path]]]
) -> None:
    assert pack_submission.main([str(submissions / "acme")]) == 0
    logs = [path for path in logs_below(submissions) if "acme" in path.parts]
    assert sorted(path for _, path in opened() if path in set(logs)) == logs


@pytest.mark.parametrize("command", ["check", "summary", "leaderboard"])
def test_each_log_is_parsed_once(
    command: str, submissions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: Counter[Path] = Counter()
    for module in (runlog, powerlog):

        def read(path: Path, *how: bool, original: object = module.read) -> object:
            parsed[path.resolve()] += 1
            return original(path, *how)  # type: ignore[operator]

        monkeypatch.setattr(module, "read", read)
    main, options = COMMANDS[command]
    assert main([str(submissions), *options]) == 0
    assert parsed == Counter(logs_below(submissions))


def test_the_digest_is_that_of_all_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the parser stops early, or skips what is too long."""
    import hashlib

    from cepheid.compliance.read.log import records

    monkeypatch.setattr(records, "LINE_BYTES_MAX", 1000)
    monkeypatch.setattr(records, "EVENTS_MAX", 3)
    records_ = run_records(definition.load("galaxy_shape", "mini"))
    log = write_log(tmp_path / "result_0.txt", records_)
    log.write_bytes(b"x" * 5000 + b"\n" + log.read_bytes() + b"no line feed at the end")
    read = runlog.read(log, with_digest=True)
    assert any(problem.lost for problem in read.problems)
    assert read.sha256 == hashlib.sha256(log.read_bytes()).hexdigest()
    assert runlog.read(log).sha256 == ""
    assert runlog.read(tmp_path, with_digest=True).sha256 == ""


def test_no_log_is_kept(submissions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of results fit into memory because each one's logs are let go."""
    import weakref

    alive: list[weakref.ref[RunLog]] = []
    most, original = 0, runlog.read

    def read(path: Path, *how: bool) -> RunLog:
        nonlocal most
        log = original(path, *how)
        alive.append(weakref.ref(log))
        most = max(most, sum(known() is not None for known in alive))
        return log

    monkeypatch.setattr(runlog, "read", read)
    monkeypatch.setattr(unit, "LOGS_FOR_PROCESSES", 10**6)
    assert build_leaderboard.main([str(submissions), "--output", "site"]) == 0
    assert len(alive) == 2 * (5 + 5 + 1)
    assert most <= 6 + 5, "no more than the logs of two results at a time"
