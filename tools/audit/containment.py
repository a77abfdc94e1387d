"""Contain submitted code: what it sees of this machine, where it may write, when it must end.

Bubblewrap builds the container from nothing, so that whatever is not named here does not exist for
the code: no network, process, socket, device or file of the host. The same tables say all of that.
"""

import ctypes
import os
import resource
import shutil
import signal
import site
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from cepheid.compliance.finding import escape
from cepheid.rules.definition import BENCHMARKS_VARIABLE
from cepheid.rules.errors import UserError
from cepheid.rules.host import IMPORT_ROOT, IS_CHECKOUT

UNCONTAINED_FLAG = "--without-containment"
SHARE_FLAG = "--share"
LINE_BYTES = 4096  # of what the code prints, passed on at once
KEYCTL = {"x86_64": 250, "aarch64": 219}  # the number of that system call
JOIN_SESSION_KEYRING = 1  # a new one, without a name
HOME = "/tmp"  # inside the container, where it is private

# Programs and libraries. Of /etc only what finds them: the rest describes the host and its users.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
          "/etc/alternatives", "/etc/fonts",
          "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d",
          "/sys/devices/system/cpu", "/sys/devices/system/node")  # fmt: skip
UNSHARED = ("--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL",
            "--die-with-parent", "--new-session", "--hostname", "audit",
            "--proc", "/proc", "--dev", "/dev",
            "--tmpfs", "/dev/shm", "--tmpfs", "/tmp", "--tmpfs", "/run")  # fmt: skip
# For root, who owns the settings of the kernel under /proc, and could write to them.
SEALED = ("--remount-ro", "/proc", "--remount-ro", "/", "--")
KEPT_VARIABLES = ("PATH", "TMPDIR", "PYTHONPATH", "OMP_NUM_THREADS", "COLUMNS", BENCHMARKS_VARIABLE)
CONTAINED = (
    "no network; it saw no process, socket, device, home or environment of this machine, and could "
    "write only to its output folder"
)


@dataclass(frozen=True)
class Containment:
    """How the code is kept from the machine; ``prefix`` stands before its command."""

    name: str
    what: str
    prefix: tuple[str, ...] = ()


UNCONTAINED = Containment("none", "it had your network, your files and your permissions")


@dataclass(frozen=True)
class View:
    """What the code may see: read-only folders, what the user shares, and the one it may fill."""

    readable: Sequence[Path]
    output: Path
    shared: Sequence[Path] = ()


def contain(view: View) -> Containment:
    """Return the containment by bubblewrap. Raises UserError where that does not work here."""
    for path in view.shared:
        if not path.exists():
            raise UserError(f"{SHARE_FLAG} {path}: there is no such file, folder or device")
    place = ("--chdir", str(view.output.resolve()))
    prefix = ("bwrap", *UNSHARED, *_list_bindings(view), *place, *SEALED)
    reason = _find_obstacle(prefix)
    if reason:
        raise UserError(
            f"submitted code runs only contained by bubblewrap, and {reason}; install the package "
            f"bubblewrap where user namespaces are allowed, or add {UNCONTAINED_FLAG} on a machine "
            "that holds nothing of value: then it has your network, files and permissions"
        )
    return Containment("bwrap", CONTAINED, prefix)


def _find_obstacle(prefix: Sequence[str]) -> str:
    """Return why bubblewrap does not work here; "" where it does."""
    if shutil.which(prefix[0]) is None:
        return "there is no program bwrap here"
    try:
        done = subprocess.run(
            [*prefix, "true"], check=False, capture_output=True, timeout=60, text=True
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bwrap does not work here ({error})"
    return f"bwrap does not work here ({done.stderr.strip()})" if done.returncode else ""


def _list_bindings(view: View) -> Iterator[str]:
    """Yield the arguments that show files to the code, those it may write last."""
    for name in SYSTEM:
        if os.path.islink(name):  # such as /bin, which is usr/bin
            yield from ("--symlink", os.readlink(name), name)
        elif os.path.exists(name):
            yield from ("--ro-bind", name, name)
    for path in [*_list_python(), *view.readable]:
        yield from _bind("--ro-bind", path)
    for path in view.shared:
        is_device = path.is_char_device() or path.is_block_device()
        yield from _bind("--dev-bind" if is_device else "--ro-bind", path)
    yield from _bind("--bind", view.output)


def _bind(how: str, path: Path) -> Iterator[str]:
    """Yield a binding of a path under its own name, and of what it links to under that name."""
    for name in dict.fromkeys((os.path.abspath(path), os.path.realpath(path))):
        yield from (how, os.path.realpath(path), name)


def _list_python() -> Iterator[Path]:
    """Yield this Python, its packages, and the rooms of this suite: not all of the checkout."""
    folders = [Path(sys.base_prefix), Path(sys.prefix), *map(Path, site.getsitepackages())]
    if site.ENABLE_USER_SITE:
        folders.append(Path(site.getusersitepackages()))
    if IS_CHECKOUT:
        package = IMPORT_ROOT / "cepheid"
        folders += [package, *(room.resolve() for room in package.iterdir() if room.is_symlink())]
    else:
        folders.append(IMPORT_ROOT)
    if os.environ.get(BENCHMARKS_VARIABLE):
        folders.append(Path(os.environ[BENCHMARKS_VARIABLE]))
    system = tuple(Path(name) for name in ("/usr", "/bin", "/lib"))
    for folder in dict.fromkeys(folders):
        if folder.exists() and not any(folder.is_relative_to(known) for known in system):
            yield folder


def make_environment(temporary: Path, *, is_contained: bool) -> Mapping[str, str]:
    """Return the environment of the code: this Python first, temporary files in ``temporary``.

    Contained, it has nothing of the user's but what changes how a run computes.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    found = {**os.environ, "PATH": path, "TMPDIR": str(temporary.resolve())}
    if not is_contained:
        return found
    if IS_CHECKOUT:
        found["PYTHONPATH"] = str(IMPORT_ROOT)
    kept = {name: found[name] for name in KEPT_VARIABLES if name in found}
    return {**kept, "HOME": HOME, "USER": "audit", "LOGNAME": "audit", "LANG": "C.UTF-8"}


def run_to_an_end(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> int:
    """Run submitted code, pass on what it prints as plain text, and return its exit status.

    It has no terminal and leaves no memory dump. Raises UserError if it takes longer than
    ``seconds``; then it is killed with all that it started.
    """
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=_leave_the_session,
    )
    relay = threading.Thread(target=_pass_on, args=(process.stdout,), daemon=True)
    relay.start()
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise UserError(
            f"the submitted code was ended after {seconds:.0f} s: it took too long"
        ) from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what bubblewrap started ends with it
        process.wait()
        relay.join(timeout=5)  # code that is not contained may leave a process that still prints


def _pass_on(printed: IO[bytes]) -> None:
    while line := printed.readline(LINE_BYTES):
        text = line.decode(errors="replace").rstrip("\r\n").expandtabs()
        print(escape(text), flush=True)


def _leave_the_session() -> None:
    """Leave no memory dump on this machine, and the keys that the kernel holds for the user."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    number = KEYCTL.get(os.uname().machine)
    if number is not None:
        ctypes.CDLL(None).syscall(number, JOIN_SESSION_KEYRING, None)


def sweep(output: Path) -> None:
    """Leave only folders and regular files in the output, none of which anyone could run as root.

    A link, a socket or a pipe that submitted code left would lead a reader out of the folder.
    """
    for folder, folders, files in os.walk(output):
        for name in [*folders, *files]:
            path = Path(folder) / name
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                path.unlink()
            else:
                path.chmod(0o755 if path.is_dir() else 0o644)
