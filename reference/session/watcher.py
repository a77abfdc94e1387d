"""A small process that outlives a run, and closes its log if the run is killed.

The run holds one end of a pipe and the watcher the other. When the process of the run is gone, for
whatever reason, the watcher reads the end of the file, and closes a log that was left open. The
same pipe carries Ctrl-C and SIGTERM: Python's signal handler in C writes them, also while the run
waits in a library and cannot react. The watcher kills a run that does not end soon after, unless
the run says that it finishes first. It also kills one with SIGBUS, at once: a mapped file could not
be read, and the run cannot go on.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cepheid.rules.host import IMPORT_ROOT

GRACE_SECONDS = 10.0  # for a run to end after a signal; torchrun and Slurm kill after 30
FINISHES = 0  # sent through the pipe among the numbers of signals, of which none is 0
KILLED = "killed, perhaps for lack of memory"
UNREADABLE = "stopped by SIGBUS: a mapped file could not be read (disk failed, or file cut short)"
_pipe: int | None = None


@contextmanager
def watch(folder: Path, lock: int) -> Iterator[None]:
    """Make sure that logs in ``folder`` are closed, even if this process is killed in the block.

    The watcher shares the file descriptor ``lock``, so the lock is free only after the watcher has
    ended, too. The block must be entered in the main thread.
    """
    global _pipe
    reading, _pipe = os.pipe()
    os.set_blocking(_pipe, False)
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "cepheid.reference.session.watcher",
            os.path.abspath(folder),
            str(os.getpid()),
        ],
        stdin=reading,
        stdout=subprocess.DEVNULL,
        cwd=IMPORT_ROOT,
        pass_fds=(lock,),
        start_new_session=True,  # a signal to the run's process group does not reach the watcher
    )
    os.close(reading)
    before = signal.set_wakeup_fd(_pipe, warn_on_full_buffer=False)
    bus_error = signal.signal(signal.SIGBUS, lambda *_: None)  # the watcher sees it in the pipe
    try:
        yield
    finally:
        signal.signal(signal.SIGBUS, bus_error)
        signal.set_wakeup_fd(before)
        os.close(_pipe)
        _pipe = None
        process.wait()


def finish_first() -> None:
    """Tell the watcher that the run finishes before it ends, so that only a new signal kills it."""
    if _pipe is not None:
        with contextlib.suppress(OSError):
            os.write(_pipe, bytes([FINISHES]))


def _forget() -> None:
    """Close the pipe in a forked child, whose signals and end are not those of the run."""
    global _pipe
    if _pipe is not None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGBUS, signal.SIG_DFL)
        os.close(_pipe)
        _pipe = None


os.register_at_fork(after_in_child=_forget)


def main() -> None:
    """Wait for the end of the run, then close what it left open."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # These may be sent to all processes; the watcher waits for the end of the pipe.
        signal.signal(number, signal.SIG_IGN)
    folder, run = Path(sys.argv[1]), int(sys.argv[2])
    why = _wait_for_end(run)

    from cepheid.reference.run import logfile

    for partial in logfile.list_partials(folder):
        log = logfile.close_log(partial, why)
        print(f"cepheid: the run was {why}; its log is kept: {log}", file=sys.stderr)


def _wait_for_end(run: int) -> str:
    """Wait until the process ``run`` has closed the pipe; return why, for a log left open."""
    why, deadline = KILLED, None
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([sys.stdin], [], [], left)
        if not ready:
            if os.getppid() != run:
                return why  # the run is gone, though another process still holds the pipe
            os.kill(run, signal.SIGKILL)
            why, deadline = f"{why} and did not end within {GRACE_SECONDS:.0f} s", None
            continue
        signals = os.read(sys.stdin.fileno(), 1024)
        if not signals:
            return why
        if signal.SIGBUS in signals and why != UNREADABLE:
            os.kill(run, signal.SIGKILL)
            why = UNREADABLE
        for number in signals:
            if number == FINISHES:
                why, deadline = KILLED, None
            is_asked = number in (signal.SIGINT, signal.SIGTERM)
            if is_asked and deadline is None and "stopped" not in why:
                why = f"stopped by {signal.Signals(number).name}"
                deadline = time.monotonic() + GRACE_SECONDS


if __name__ == "__main__":
    main()
