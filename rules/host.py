"""What trainer, checker and tools all need of the machine: code, whole files, its processors."""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from cepheid.rules.errors import UserError

ROOT = Path(__file__).resolve().parent.parent
"""The folder with the rooms: the root of a checkout, or ``cepheid`` in site-packages."""

IS_CHECKOUT = (ROOT / "cepheid" / "rules").is_dir()
NO_WEIGHTS = "" if IS_CHECKOUT else "; an installation has no weights, a checkout has them"
"""What a message about a missing file of weights adds."""

IMPORT_ROOT = ROOT if IS_CHECKOUT else ROOT.parent
"""The folder from which another process imports ``cepheid``."""
FIGURE_STYLE = ROOT / "rules" / "figures.mplstyle"  # for matplotlib.rc_context(fname=…)

KERAS_BACKENDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"tensorflow": ("keras",), "jax": ("jax",)}
)
"""What Keras computes on, the usual one first, and the extras that runs with each need."""
BACKEND_VARIABLE = "KERAS_BACKEND"  # Keras' own


def find_backend() -> str:
    """Return what Keras computes on here. Raises UserError for what our tasks do not know."""
    usual, *_ = KERAS_BACKENDS
    name = os.environ.get(BACKEND_VARIABLE) or usual
    if name not in KERAS_BACKENDS:
        known = ", ".join(KERAS_BACKENDS)
        raise UserError(f"{BACKEND_VARIABLE}={name}: expected one of {known}; fix: unset it")
    return name


def require_checkout(what: str) -> None:
    """Raise UserError in an installation, where ``what`` would be written among its files."""
    if not IS_CHECKOUT:
        raise UserError(
            f"{what} is written into a checkout of Cepheid, and this is an installation ({ROOT}); "
            "clone the repository and run the same command there"
        )


def atomic_write(path: Path, content: str | bytes) -> None:
    """Write ``content`` to ``path`` so that no reader ever sees half of it.

    Text is written as UTF-8. Raises OSError if the file cannot be written; then an older file of
    that name is unchanged.
    """
    with atomic_path(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def atomic_path(path: Path, *, sync: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that becomes ``path`` if the block succeeds.

    The block writes the file. The file is on the disk before it gets its name, so that a machine
    that stops cannot leave an empty one; ``sync=False`` omits this for data that can be made again.
    If the block fails, the temporary file is deleted.
    """
    # Several processes may write the same file, so each has a temporary file of its own.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield temporary
        if sync:
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def remove_partials(folder: Path, name: str = "*") -> None:
    """Delete what killed processes left of files of this ``name``; nobody writes there now."""
    for left in folder.glob(f".{name}.*.partial"):
        with contextlib.suppress(OSError):
            left.unlink()


def handle_ending(handler: Callable[..., object] | signal.Handlers) -> dict[signal.Signals, Any]:
    """Let ``handler`` take the signals that ask a process to end; return the handlers before.

    They come from Ctrl-C, a scheduler, or a terminal that closes; `nohup` has the last one ignored.
    """
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return {number: signal.signal(number, handler) for number in numbers[: 3 - is_ignored]}


@contextmanager
def end_on_interruption(exit_code: int) -> Iterator[None]:
    """Let an interruption end the process at once within the block, which imports modules.

    Nothing is open yet that must be closed. An exception would be lost: several libraries catch
    whatever is raised while they are imported.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        os.write(2, b"cepheid: interrupted\n")
        os._exit(exit_code)

    before = handle_ending(end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def follow_parent() -> None:
    """Make this worker process ignore Ctrl-C, which its parent handles, and end with its parent.

    Without this, the workers of a parent that was killed wait for work for ever.
    """
    from multiprocessing import connection, parent_process  # here: few processes need it

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def end() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def usable_processors() -> int:
    """Return the number of processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def keep_memory() -> None:
    """Let glibc keep some freed memory for the next log, instead of asking the system again.

    It keeps twice as much as the largest piece that was freed at once: this one, never written to.
    """
    bytes(FREED_BYTES)


FREED_BYTES = 8 * 2**20


def release_memory() -> None:
    """Give the system back what was freed, which glibc keeps: a fifth of a large process."""
    import ctypes  # here: a log by itself needs none of it

    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
