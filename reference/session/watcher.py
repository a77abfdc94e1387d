"""A small process that outlives a run, and closes its log if the run is killed.

The run holds one end of a pipe and the watcher the other. When the process of the run is gone, for
whatever reason, the watcher reads the end of the file, and closes a log that was left open. The
same pipe carries Ctrl-C, SIGTERM and SIGHUP: Python's signal handler in C writes them, also while
the run waits in a library and cannot react. The watcher kills a run that does not end soon after,
unless the run says that it finishes first. It also kills one with SIGBUS, at once: a mapped file
could not be read, and the run cannot go on. A text in the pipe is the run's own reason for its end.
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

from cepheid.reference.machine import placement
from cepheid.rules.host import IMPORT_ROOT, handle_ending, remove_partials

GRACE_SECONDS = 10.0  # for a run to end after a signal; torchrun and Slurm kill after 30
LOOK_SECONDS = 2.0  # between two looks at whether the run is stopped
FINISHES = 0  # sent through the pipe among the numbers of signals, of which none is 0
TEXT_FROM = 32  # the numbers of signals that are caught here are smaller
KILLED = "killed, perhaps for lack of memory"
UNREADABLE = "stopped by SIGBUS: a mapped file could not be read (disk failed, or file cut short)"
_pipe: int | None = None


@contextmanager
def watch(folder: Path, weights: Path, lock: int) -> Iterator[None]:
    """Make sure that logs in ``folder`` are closed, even if this process is killed in the block.

    The final weights of its runs lie in ``weights``; none of them stays half-written.
    The watcher shares the file descriptor ``lock``, so the lock is free only after the watcher has
    ended, too. The block must be entered in the main thread.
    """
    global _pipe
    reading, _pipe = os.pipe()
    os.set_blocking(_pipe, False)
    arguments = [os.path.abspath(folder), os.path.abspath(weights), str(os.getpid())]
    process = subprocess.Popen(
        [sys.executable, "-m", "cepheid.reference.session.watcher", *arguments],
        stdin=reading,
        stdout=subprocess.DEVNULL,
        cwd=IMPORT_ROOT,
        pass_fds=(lock,),
        start_new_session=True,  # a signal to the run's process group does not reach the watcher
    )
    os.close(reading)
    before = signal.set_wakeup_fd(_pipe, warn_on_full_buffer=False)
    bus_error = signal.signal(signal.SIGBUS, lambda *_: None)  # the watcher sees it in the pipe
    placement.use_listener(lambda why: _send(why.encode("ascii", "replace")))
    try:
        yield
    finally:
        placement.use_listener(None)
        signal.signal(signal.SIGBUS, bus_error)
        signal.set_wakeup_fd(before)
        os.close(_pipe)
        _pipe = None
        if _is_all_closed(folder, weights):
            process.kill()  # it has nothing to do, and may not have begun
        process.wait()


def _is_all_closed(folder: Path, weights: Path) -> bool:
    """Return True if no log is left open; no other file is half-written then, either."""
    from cepheid.reference.run import logfile

    if logfile.list_partials(folder):
        return False
    remove_partials(folder)
    remove_partials(weights)
    return True


def finish_first() -> None:
    """Tell the watcher that the run finishes before it ends, so that only a new signal kills it."""
    _send(bytes([FINISHES]))


def _send(message: bytes) -> None:
    if _pipe is not None:
        with contextlib.suppress(OSError):
            os.write(_pipe, message)


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
    # These may be sent to all processes; the watcher waits for the end of the pipe.
    handle_ending(signal.SIG_IGN)
    folder, weights, run = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    why, is_told = _wait_for_end(run)

    from cepheid.reference.run import logfile

    for partial in logfile.list_partials(folder):
        log = logfile.close_log(partial, why)
        told = "" if is_told else f"the run was {why}; "
        print(f"cepheid: {told}its log is kept: {log}{tell_lost(weights, log)}", file=sys.stderr)
    remove_partials(folder)
    remove_partials(weights)


def tell_lost(weights: Path, log: Path) -> str:
    """Return what to tell of a run that counts and was killed before it was over.

    It writes its weights after ``run_stop``, if it trains.
    """
    from cepheid.reference.run import logfile

    if not log.name.startswith("result_"):
        return ""
    stop, seed = (logfile.find_last_record(log, key) for key in ("run_stop", "seed"))
    written = weights.glob(f"run_{log.stem.removeprefix('result_')}.*")
    stopped = stop["time_ms"] / 1000 - 1 if stop else 0.0  # times of files are coarse
    is_kept = any(path.stat().st_mtime >= stopped for path in written)
    if is_kept or not seed or not logfile.find_last_record(log, "block_stop"):
        return "; it counts"
    again = f"`--runs 1 --seed {seed['value']}` with another --output makes them again"
    return f"; it counts, but its weights are lost; fix: {again}"


def _wait_for_end(run: int) -> tuple[str, bool]:
    """Wait until the process ``run`` has closed the pipe.

    Return why, for a log left open, and whether the run itself has told that.
    """
    why, deadline, text, stopped_at = KILLED, None, b"", None
    while True:
        now = time.monotonic()
        until = LOOK_SECONDS if deadline is None else deadline - now
        ready, _, _ = select.select([sys.stdin], [], [], max(0.0, min(until, LOOK_SECONDS)))
        if not ready:
            if os.getppid() != run:
                return why, False  # the run is gone, though another process still holds the pipe
            stopped_at = (stopped_at or now) if _is_stopped(run) else None
            if deadline is not None and time.monotonic() >= deadline:
                os.kill(run, signal.SIGKILL)
                why, deadline = f"{why} and did not end within {GRACE_SECONDS:.0f} s", None
            continue
        signals = os.read(sys.stdin.fileno(), 1024)
        text += bytes(number for number in signals if number >= TEXT_FROM)
        if not signals and text:
            return text.decode("ascii"), True
        if not signals and stopped_at is not None:
            seconds = time.monotonic() - stopped_at
            return f"stopped by SIGSTOP or Ctrl-Z for {seconds:,.0f} s, then killed", False
        if not signals:
            return why, False
        if signal.SIGBUS in signals and why != UNREADABLE:
            os.kill(run, signal.SIGKILL)
            why = UNREADABLE
        for number in signals:
            if number == FINISHES:
                why, deadline = KILLED, None
            is_asked = number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            if is_asked and deadline is None and "stopped" not in why:
                why = f"stopped by {signal.Signals(number).name}"
                deadline = time.monotonic() + GRACE_SECONDS


def _is_stopped(run: int) -> bool:
    """Return True if the system says that the process ``run`` is stopped, as by Ctrl-Z."""
    try:
        status = Path(f"/proc/{run}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # no Linux, or the process has ended
        return False
    return status.rpartition(")")[2].split()[0] in ("T", "t")


if __name__ == "__main__":
    main()
