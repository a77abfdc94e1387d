"""What `cepheid audit --run-submitted-code` promises: one test for each claim."""

import contextlib
import ctypes
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cepheid.rules.errors import UserError
from cepheid.tools.audit.containment import View, contain, make_environment, run_to_an_end, sweep
from tests import assert_refused
from tests.compliance.asserting import Printed

needs_bwrap = pytest.mark.skipif(not shutil.which("bwrap"), reason="bubblewrap is not installed")

# Ways out of the container. Each succeeds without one, and so is worth trying. LIBC is the C
# library, and a few modules are imported.
ATTEMPTS = {
    "connect to this machine": "socket.create_connection(('127.0.0.1', {port}), timeout=5)",
    "see its interfaces": "assert [name for _, name in socket.if_nameindex() if name != 'lo']",
    "connect to a socket in a file": "socket.socket(socket.AF_UNIX).connect('{secrets}/socket')",
    "connect to an abstract socket": "socket.socket(socket.AF_UNIX).connect(chr(0) + '{marker}')",
    "signal a process": "os.kill({pid}, 0)",
    "list processes": "open('/proc/{pid}/cmdline')",
    "use a key": "assert LIBC.syscall(250, 10, -3, b'user', b'{marker}', 0) > 0",
    "read the files of a process": "open('/proc/{pid}/root{secrets}/key')",
    "use a queue of messages": "assert LIBC.msgget({pid}, 0) >= 0",
    "use shared memory of System V": "assert LIBC.shmget({pid}, 0, 0) >= 0",
    "use semaphores": "assert LIBC.semget({pid}, 0, 0) >= 0",
    "list abstract sockets": "assert '{marker}' in open('/proc/net/unix').read()",
    "see packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 768)",
    "trace a process": "assert LIBC.ptrace(0x4206, {pid}, 0, 0) == 0",
    "enter the network of a process": (
        "assert LIBC.setns(os.open('/proc/{pid}/ns/net', os.O_RDONLY), 0) == 0"
    ),
    "take precedence over others": "os.setpriority(os.PRIO_PROCESS, 0, -5)",
    "read messages of the kernel": "assert LIBC.klogctl(3, ctypes.create_string_buffer(9), 9) >= 0",
    "use a device": "assert os.listdir('/dev/shm') or os.path.exists('/dev/mem')",
    "use an open file": "os.fstat({descriptor})",
    "keep a privilege": (
        "assert int(open('/proc/self/status').read().split('CapEff:')[1].split()[0], 16)"
    ),
    "mount": "subprocess.run(['unshare', '-rm', 'true'], check=True)",
    "know the name of the machine": "assert socket.gethostname() != 'audit'",
    "know its identity": "open('/etc/machine-id')",
    "read a variable": "assert os.environ['AUDIT_SECRET']",
    "read a secret": "open('{secrets}/key')",
    "read a folder beside its own": "os.listdir('{secrets}')",
    "read the logs beside its code": "open('{code}/../results/result_0.txt')",
    "see a home": "assert os.listdir('/home') is not None",
    "read passwords": "open('/etc/shadow')",
    "list users": "open('/etc/passwd')",
    "read shared memory": "open('/dev/shm/{marker}')",
    "read a temporary file": "open('/tmp/{marker}')",
    "read a file of a service": "open('/run/{marker}')",
    "write beside the output": "open('{secrets}/written', 'w')",
    "write to its code": "open('{code}/written', 'w')",
    "write to the data": "open('{data}/written', 'w')",
    "write to this Python": "open(sys.prefix + '/{marker}', 'w')",
    "write to programs": "open('/usr/{marker}', 'w')",
    "write to the root": "open('/{marker}', 'w')",
    "change a setting of the kernel": "open('/proc/sys/kernel/core_uses_pid', 'r+')",
}

FORBIDDEN_IN_SOME_CONTAINERS = (
    "see packets", "trace a process", "enter the network of a process",
    "take precedence over others", "read messages of the kernel", "mount",
    "change a setting of the kernel", "see its interfaces", "use a key",
)  # fmt: skip


TRY = """
import ctypes, json, os, socket, subprocess, sys
LIBC, said = ctypes.CDLL(None), {}
for attempt, source in json.loads(sys.argv[1]).items():
    try:
        exec(source)
        said[attempt] = "reached"
    except Exception as error:
        said[attempt] = repr(error)
print(json.dumps(said))
sys.exit("reached" not in said.values())
"""


@dataclass(frozen=True)
class Host:
    """Things of this machine that the code must not reach."""

    facts: dict[str, object]
    view: View

    def write(self, *attempts: str) -> list[str]:
        """Return a command that tries something and says what worked; it fails where all fail."""
        tried = {name: ATTEMPTS.get(name, name).format(**self.facts) for name in attempts}
        return [sys.executable, "-c", TRY, json.dumps(tried)]

    def run(self, command: list[str], seconds: float = 60) -> int:
        environment = make_environment(self.view.output, is_contained=True)
        return run_to_an_end([*contain(self.view).prefix, *command], environment, seconds)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    marker, folder = f"audit-test-{os.getpid()}", tmp_path_factory.mktemp("host")
    for name in ("code", "data", "output", "secrets", "results"):
        (folder / name).mkdir()
    secrets = folder / "secrets"
    (secrets / "key").touch()
    (folder / "results" / "result_0.txt").touch()
    planted = [Path(place) / marker for place in ("/dev/shm", "/tmp", "/run")]
    sleeping = subprocess.Popen([sys.executable, "-c", "input()", marker], stdin=subprocess.PIPE)
    library = ctypes.CDLL(None)
    library.syscall(248, b"user", marker.encode(), b"secret", 6, -3)  # add_key to the session
    queue = library.msgget(sleeping.pid, 0o1600)
    memory = library.shmget(sleeping.pid, 4096, 0o1600)
    semaphores = library.semget(sleeping.pid, 1, 0o1600)
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.chdir(secrets),  # the whole path may be too long for a socket
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as named,
        socket.socket(socket.AF_UNIX) as abstract,
        open(secrets / "key") as opened,
    ):
        patch.setenv("AUDIT_SECRET", "secret")
        for end, address in ((named, "socket"), (abstract, f"\0{marker}")):
            end.bind(address)
            end.listen()
        os.set_inheritable(opened.fileno(), True)
        facts: dict[str, object] = {n: folder / n for n in ("code", "data", "secrets")}
        port = server.getsockname()[1]
        facts |= {"port": port, "pid": sleeping.pid, "descriptor": opened.fileno()}
        try:
            for path in planted:
                path.touch()
            view = View((folder / "code", folder / "data"), folder / "output")
            yield Host({**facts, "marker": marker}, view)
        finally:
            written = [Path(place) / marker for place in ("/", "/usr", sys.prefix)]
            for path in [*planted, *written]:
                path.unlink(missing_ok=True)
            library.msgctl(queue, 0, None)
            library.shmctl(memory, 0, None)
            library.semctl(semaphores, 0, 0)
            sleeping.kill()
            sleeping.communicate()


@needs_bwrap
def test_no_attempt_leaves_the_container(host: Host, capfd: Printed) -> None:
    """All are tried in one container, then without one, where they must work."""
    assert host.run(host.write(*ATTEMPTS)) == 1
    said = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert said.keys() == ATTEMPTS.keys()
    assert [attempt for attempt, what in said.items() if "Error" not in what] == []
    if os.geteuid() == 0:
        free = subprocess.run(host.write(*ATTEMPTS), close_fds=False, capture_output=True)
        failed = {name for name, what in json.loads(free.stdout).items() if what != "reached"}
        assert failed <= set(FORBIDDEN_IN_SOME_CONTAINERS)


@needs_bwrap
def test_the_code_may_do_what_a_run_needs(host: Host) -> None:
    for place in (host.view.output, host.view.output.parent, "/tmp", "/dev/shm"):
        host.run(host.write(f"open('{place}/written', 'w').write('x')"))
    assert (host.view.output / "written").read_text() == "x"
    for place in (host.view.output.parent, Path("/tmp"), Path("/dev/shm")):
        assert not (place / "written").exists()
    assert host.run(host.write("os.listdir('{code}'); os.listdir('{data}')")) == 0
    assert host.run(host.write("import cepheid.rules, numpy, tempfile; tempfile.mkdtemp()")) == 0


@needs_bwrap
def test_what_the_user_shares_is_there(host: Host) -> None:
    secrets = Path(str(host.facts["secrets"]))
    shared = Host(host.facts, View((), host.view.output, (secrets, Path("/dev/fuse"))))
    if not Path("/dev/fuse").exists():
        shared = Host(host.facts, View((), host.view.output, (secrets,)))
    assert shared.run(host.write("read a secret")) == 0
    assert shared.run(host.write("write beside the output")) == 1
    with pytest.raises(UserError, match="--share /nowhere: there is no such file"):
        contain(View((), host.view.output, (Path("/nowhere"),)))


@needs_bwrap
@pytest.mark.parametrize(
    "code",
    [
        "import time; time.sleep(600)",
        "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)",
        "import os, time; os.fork(); os.setsid() if os.fork() == 0 else 0; time.sleep(600)",
    ],
)
def test_the_code_ends_in_time_with_all_that_it_started(code: str, host: Host) -> None:
    began = time.monotonic()
    with pytest.raises(UserError, match="ended after 2 s: it took too long"):
        host.run([sys.executable, "-c", code, "late-" + str(host.facts["marker"])], 2)
    assert time.monotonic() - began < 20
    assert_no_process(f"late-{host.facts['marker']}")


@needs_bwrap
def test_nothing_goes_on_after_the_code(host: Host) -> None:
    marker = f"left-{host.facts['marker']}"
    code = "import os, sys, time; os.fork() or (os.setsid(), time.sleep(600)); sys.exit(0)"
    assert host.run([sys.executable, "-c", code, marker]) == 0
    assert_no_process(marker)


def assert_no_process(marker: str) -> None:
    deadline = time.monotonic() + 10
    while True:
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                found += [path] if marker.encode() in path.read_bytes() else []
            except OSError:
                continue
        if not found:
            return
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


@needs_bwrap
def test_what_the_code_prints_cannot_command_the_terminal(host: Host, capfd: Printed) -> None:
    host.run([sys.executable, "-c", "print('\x1b]0;title\x07'); print('x' * 10_000, end='')"])
    printed = capfd.readouterr().out
    assert "\x1b" not in printed
    assert "\\x1b]0;title\\x07" in printed
    assert printed.count("x") >= 10_000


def test_links_and_privileges_are_swept_out_of_the_output(tmp_path: Path) -> None:
    output = tmp_path / "output"
    (output / "folder").mkdir(parents=True)
    (output / "folder" / "log").write_text("kept")
    (output / "folder" / "log").chmod(0o4777)
    (output / "file").symlink_to("/etc/passwd")
    (output / "away").symlink_to("/etc")
    os.mkfifo(output / "folder" / "pipe")
    sweep(output)
    left = sorted(path.relative_to(output).as_posix() for path in output.rglob("*"))
    assert left == ["folder", "folder/log"]
    assert stat.S_IMODE((output / "folder" / "log").stat().st_mode) == 0o644


def test_without_bubblewrap_nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = View((), tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert_refused(r"no program bwrap here; install .* --without-containment", contain, view)
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho 'No permissions' >&2; exit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    assert_refused(r"bwrap does not work here \(No permissions\)", contain, view)
