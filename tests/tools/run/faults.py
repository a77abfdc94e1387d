"""Faults of the system around a command that a test starts: what happens, and how to make it so."""

import errno
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from cepheid.rules.host import ROOT
from tests.processes import Ended, Program, end_all

# The clocks of processes that import this go back by an hour at the tenth look.
STEPPED = """
import itertools, time
now, looks = time.time, itertools.count()
time.time = lambda: now() - 3600 * (next(looks) > 10)
"""
FINDING = re.compile(r":\d+: ([A-Z]+\d+\.\w+)")
SANDBOX = "exec bwrap --dev-bind / /"
DEVICES = " ".join(f"--dev-bind /dev/{name} /dev/{name}" for name in ("null", "urandom", "zero"))
# How a shell starts a command, "$@", under a fault, and whether what it does can still succeed.
# {at} is the folder of the command's files, {aside} another one.
Fault = tuple[str, bool]
PROGRAM: Mapping[str, Fault] = {  # of the program that all commands share
    "no stdout": ("exec >&-; exec", True),
    "no stream": ("exec <&- >&- 2>&-; exec", True),
    "full stdout": ("exec >/dev/full; exec", False),
    "no variables and no home": (
        "exec env -i HOME=/nowhere OMP_NUM_THREADS=1 CEPHEID_BENCHMARKS=$CEPHEID_BENCHMARKS",
        True,
    ),
    "little memory": ("ulimit -v 60000; exec", False),
}
PROCESSES: Mapping[str, Fault] = {  # of what computes in several processes, or for long
    "64 open files and 1 GB of memory": ("ulimit -n 64; ulimit -v 1000000; exec", True),
    "a clock that is set back": ("export PYTHONPATH={aside}:$PYTHONPATH; exec", False),
    "no shared memory": (f"{SANDBOX} --tmpfs /dev {DEVICES}", True),
}
DISKS: Mapping[str, Fault] = {  # of what writes
    "files of 1 kB": ("ulimit -f 1; exec", False),
    "all can only be read": ("exec bwrap --ro-bind / / --dev-bind /dev /dev", False),
    # In a file system of 8 MB of its own. What is left there goes out as an archive.
    "a full disk": (
        f"{SANDBOX} --bind {{aside}} {{aside}} --size 8000000 --tmpfs {{at}} bash -c '"
        "tar -C {at} -xf {aside}/before.tar && cat /dev/zero >{at}/filler 2>/dev/null; "
        '"$@"; code=$?; rm {at}/filler; tar -C {at} -cf {aside}/after.tar . && exit $code\' bash',
        False,
    ),
}
ALL_FAULTS = {**PROGRAM, **PROCESSES, **DISKS}


@cache
def explain_no_sandbox() -> str:
    """Return why there are no file systems of a command's own here; empty where there are."""
    if not shutil.which("bwrap"):
        return "bubblewrap is not installed"
    done = subprocess.run([*SANDBOX.split()[1:], "true"], capture_output=True)
    return done.stderr.decode()


@dataclass(frozen=True)
class Command:
    """A module with its arguments, in which {at} is the folder of its files.

    ``faults`` are those that it meets in code of its own. ``benchmarks`` is a folder of other
    definitions. ``replaces`` names what it may replace.
    """

    name: str
    arguments: str
    faults: Mapping[str, Fault]
    module: str = "cepheid.tools.cli:console"
    benchmarks: Path | None = None
    replaces: tuple[str, ...] = ()
    is_stepped: bool = False  # whether a clock that is set back is a finding

    @property
    def environment(self) -> dict[str, str]:
        return {"CEPHEID_BENCHMARKS": str(self.benchmarks)} if self.benchmarks else {}

    def list_arguments(self, at: Path) -> list[str]:
        return self.arguments.format(at=at).split()


def read_code(ended: Ended) -> int:
    """Return an exit code, 0 for a run whose times are doubted only because the machine is busy."""
    is_busy = ended.returncode == 1 and set(FINDING.findall(ended.stdout)) == {"T4.unaccounted"}
    return 0 if is_busy else ended.returncode


def run_under(fault: str, command: Command, at: Path) -> Ended:
    """Run a command in an interpreter of its own under a fault, on the files in ``at``."""
    aside = at.with_name(f"{at.name}-aside")
    aside.mkdir()
    (aside / "sitecustomize.py").write_text(STEPPED)
    if "tmpfs {at}" in ALL_FAULTS[fault][0]:
        with tarfile.open(aside / "before.tar", "w") as archive:
            archive.add(at, ".")
    script = ALL_FAULTS[fault][0].format(at=at, aside=aside) + ' "$@"'
    python = [sys.executable, "-m", command.module.partition(":")[0]]
    done = subprocess.run(
        ["bash", "-c", script, "bash", *python, *command.list_arguments(at)],
        capture_output=True, text=True, cwd=ROOT, timeout=120,
        env=os.environ | command.environment,
    )  # fmt: skip
    if (aside / "after.tar").exists():
        shutil.rmtree(at)
        with tarfile.open(aside / "after.tar") as archive:
            archive.extractall(at, filter="data")
    return done


def run_until(count: int, what: str, command: Command, at: Path) -> tuple[Ended, int]:
    """Run a command in a forked process; before its change number ``count``, ``what`` happens.

    A change makes, writes, renames or removes a file in ``at``. ``what`` is a signal, or an error
    of the system. Returns the number of changes, too.
    """
    journal = at.with_name(f"{at.name}-changes-{count}")
    journal.touch()
    program = Program(
        command.module, *command.list_arguments(at), environment=command.environment,
        prelude=partial(_break_at, count, what, str(at), str(journal)),
    )  # fmt: skip
    return end_all([program], 120)[0], journal.stat().st_size


def _break_at(count: int, what: str, at: str, journal: str) -> None:
    """Let something happen in this process before it changes something for the nth time."""
    process, written = os.getpid(), os.open(journal, os.O_WRONLY | os.O_APPEND)
    changes = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate")
    done = 0

    def look(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal done
        if event == "open":
            path, _, flags = arguments
            is_change = bool(int(str(flags)) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        else:
            path, is_change = (arguments or (None,))[0], event in changes
            is_change = is_change and os.path.exists(str(path)) != (event == "os.mkdir")
        if not is_change or not str(path).startswith(at) or os.getpid() != process:
            return
        done += 1
        os.write(written, b".")
        if done == count and what.startswith("SIG"):
            os.kill(process, signal.Signals[what])
        elif done == count:
            number = getattr(errno, what)
            raise OSError(number, os.strerror(number), str(path))

    sys.addaudithook(look)
