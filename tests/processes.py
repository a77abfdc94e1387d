"""Processes that tests start, forked from one that has loaded torch and the benchmarks.

A fresh interpreter needs seconds to import them, a fork needs milliseconds. Everything else is that
of a process of its own: pid, environment, folder, streams, signals, exit code. Tests of the
interpreter's start itself (which modules a command loads, how a run starts the next one) use
``subprocess``.
"""

import importlib
import json
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import forkserver, process
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from subprocess import TimeoutExpired
from unittest.mock import patch

import psutil

from cepheid.measure.engine.own_process import find_free_port
from cepheid.rules.definition import BENCHMARKS_VARIABLE
from cepheid.rules.host import ROOT
from tests.checkout import run_program

Prelude = Callable[[], object]
Ended = subprocess.CompletedProcess[str]


@cache
def warm_context() -> ForkServerContext:
    """Start the process to fork from, and return its context."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.preloaded"])
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    with patch.dict(os.environ, {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}):
        os.environ.pop(BENCHMARKS_VARIABLE, None)
        forkserver.ensure_running()
    return context


class Program:
    """A command in a forked process, with the interface of ``subprocess.Popen`` in text mode."""

    def __init__(
        self,
        target: str,
        *arguments: object,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        prelude: Prelude | None = None,
    ) -> None:
        """Start ``module:function``, which reads ``sys.argv``.

        ``environment`` is added to this process' own; ``prelude`` is called in the new process
        before the command.
        """
        context = warm_context()
        readers, writers = zip(*(context.Pipe(duplex=False) for _ in range(2)), strict=True)
        self._process = context.Process(
            target=_run_program,
            args=(
                writers,
                target,
                [str(argument) for argument in arguments],
                {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
                str(folder or Path.cwd()),
                prelude,
            ),
        )
        self._process.start()
        self._readers = [_Reader(reader) for reader in readers]
        for writer in writers:
            writer.close()
        self.pid: int = self._process.pid or 0

    @property
    def returncode(self) -> int | None:
        """The exit code, minus the number of the signal that ended it, or None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return the exit code. Raises ``subprocess.TimeoutExpired``."""
        self._process.join(timeout)
        if self.returncode is None:
            raise TimeoutExpired(str(self._process), timeout or 0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Wait for its end and return what it printed. Raises ``subprocess.TimeoutExpired``."""
        self.wait(timeout)
        out, err = (reader.read(timeout) for reader in self._readers)
        return out, err

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it with SIGKILL, if it still runs."""
        if self.returncode is None:
            self._process.kill()

    def terminate(self) -> None:
        """End it with SIGTERM, if it still runs."""
        if self.returncode is None:
            self._process.terminate()


def run(
    target: str,
    *arguments: object,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    prelude: Prelude | None = None,
    timeout: float = 300,
) -> Ended:
    """Run a ``Program`` to its end."""
    started = Program(target, *arguments, environment=environment, folder=folder, prelude=prelude)
    return end_all([started], timeout)[0]


cepheid = partial(run, "cepheid.tools.cli:console")
"""Run the command line to its end."""


def end_all(programs: Sequence[Program], timeout: float) -> list[Ended]:
    """Wait until all have ended, and kill what has not by then."""
    try:
        printed = [program.communicate(timeout) for program in programs]
    finally:
        for program in programs:
            program.kill()
    return [
        Ended(str(program.pid), program.wait(), *streams)
        for program, streams in zip(programs, printed, strict=True)
    ]


def run_ranks(
    count: int,
    target: str,
    *arguments: object,
    environment: Mapping[str, str] | None = None,
    timeout: float = 120,
) -> list[Ended]:
    """Run a ``Program`` to its end on so many ranks, which meet on this machine."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_port())}
    place |= {"WORLD_SIZE": str(count), **(environment or {})}
    programs = [
        Program(target, *arguments, environment={**place, "RANK": rank, "LOCAL_RANK": rank})
        for rank in map(str, range(count))
    ]
    return end_all(programs, timeout)


# Command lines one after the other in one fresh interpreter: it starts once, not for each.
LINES = """
import contextlib, io, json, sys
{first}
from cepheid.tools.cli import console
lines, ended = sys.argv[1:], {{}}
for line in lines:
    sys.argv[1:] = line.split()
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            console()
        except SystemExit as end:
            ended[line] = int(end.code or 0), out.getvalue(), err.getvalue(), "torch" in sys.modules
print(json.dumps(ended))
"""


@dataclass(frozen=True)
class Line:
    """A command line that has ended, and whether torch was loaded by then."""

    returncode: int
    stdout: str
    stderr: str
    has_torch: bool


def run_lines(lines: Sequence[str], first: str, folder: Path) -> dict[str, Line]:
    """Run `cepheid` with each of the lines in a folder, after the statements ``first``."""
    program = [sys.executable, "-c", LINES.format(first=first), *lines]
    own = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = run_program(program, cwd=folder, env=own, timeout=300)
    assert done.returncode == 0, done.stderr
    return {line: Line(*ended) for line, ended in json.loads(done.stdout).items()}


def kill_after_a_line(script: str) -> tuple[str, list[int]]:
    """Run a Python script until it prints a line, then kill it.

    Returns the line and the processes that the script had made.
    """
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as command:
        assert command.stdout is not None
        line = command.stdout.readline().decode()
        made = [child.pid for child in psutil.Process(command.pid).children()]
        command.kill()
    return line, made


def have_ended(pids: Sequence[int], seconds: float = 20) -> bool:
    """Wait until these processes have ended, and return whether they have.

    A zombie has ended: nobody reaps it in a container.
    """
    until = time.monotonic() + seconds
    while any(map(_lives, pids)):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class _Reader:
    """Reads a stream to its end beside everything else, so that its pipe never fills up."""

    def __init__(self, source: Connection) -> None:
        self._source, self._parts = source, list[bytes]()
        self._thread = threading.Thread(target=self._read_all, daemon=True)
        self._thread.start()

    def _read_all(self) -> None:
        while part := os.read(self._source.fileno(), 1 << 16):
            self._parts.append(part)

    def read(self, timeout: float | None) -> str:
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutExpired("a process that inherited the stream", timeout or 0)
        return b"".join(self._parts).decode()


def _run_program(
    writers: tuple[Connection, ...],
    target: str,
    arguments: list[str],
    environment: dict[str, str],
    folder: str,
    prelude: Prelude | None,
) -> None:
    for descriptor, writer in enumerate(writers, 1):
        os.dup2(writer.fileno(), descriptor)
        writer.close()
    take_place(environment, folder)
    module, _, function = target.partition(":")
    sys.argv = [module, *arguments]
    sys.orig_argv = [sys.executable, "-m", module, *arguments]  # for a run that starts the next one
    if prelude is not None:
        prelude()
    getattr(importlib.import_module(module), function)()


def take_place(environment: Mapping[str, str], folder: str) -> None:
    """Give this forked process the environment and the folder of the one that asked for it."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    with suppress(AttributeError):
        process.ORIGINAL_DIR = folder  # type: ignore[attr-defined]  # for processes that it starts
