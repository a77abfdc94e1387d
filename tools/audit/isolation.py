"""A process without network for code that somebody else wrote, where the system offers one."""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SHARED_LOOPBACK = 'ip link set lo up 2>/dev/null; exec "$@"'


@dataclass(frozen=True)
class Isolation:
    """How a command is kept from the network; ``prefix`` stands before the command."""

    name: str
    what: str
    prefix: tuple[str, ...] = ()


def find_isolation(writable: Path) -> Isolation:
    """Return the strictest isolation that works here; ``writable`` is the only folder it may fill.

    Each is tried with a command that does nothing, because many systems have the programs but
    forbid their use.
    """
    folder = str(writable.resolve())
    bubblewrap = ("bwrap", "--ro-bind", "/", "/", "--dev-bind", "/dev", "/dev", "--proc", "/proc",
                  "--bind", folder, folder, "--unshare-net", "--die-with-parent")  # fmt: skip
    unshare = ("unshare", "-rn", "sh", "-c", SHARED_LOOPBACK, "sh")
    candidates = (
        Isolation("bwrap", "no network; could write only to its output folder", bubblewrap),
        Isolation("unshare -rn", "no network; could write wherever you can", unshare),
    )
    for candidate in candidates:
        if shutil.which(candidate.prefix[0]) and _works(candidate.prefix):
            return candidate
    return Isolation("none", "neither bwrap nor unshare works here: it had network and your files")


def _works(prefix: Sequence[str]) -> bool:
    try:
        done = subprocess.run([*prefix, "true"], check=False, capture_output=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
