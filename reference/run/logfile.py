"""The file of a run log: how records get into it, and which name it gets when its run is over.

While the run goes on the file is called ``result_<k>.txt.partial``. Whoever ends it goes through
this module: the run itself, the watcher that outlives a killed one, or the next start.
"""

import contextlib
import json
import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlperf_logging.mllog import mllog

from rules import events
from rules.definition import ROOT
from rules.errors import UserError

_PARTIAL = ".partial"


class RecordFile:
    """Writes records through mllog, each one whole or not at all."""

    def __init__(self, path: Path, *, is_new: bool) -> None:
        self._lines = _WholeLines(path, os.O_EXCL if is_new else 0)
        logger = logging.Logger("cepheid run log", logging.INFO)
        logger.addHandler(self._lines)
        self._mllog = mllog.MLLogger(logger, root_dir=re.escape(str(ROOT)))

    def write(self, key: str, value: object = None, **metadata: object) -> None:
        """One record, now. Raises UserError where it cannot be written."""
        write = {
            "INTERVAL_START": self._mllog.start,
            "INTERVAL_END": self._mllog.end,
            "POINT_IN_TIME": self._mllog.event,
        }[events.find_event_type(key)]
        clock = {events.CLOCK_METADATA: round(time.monotonic() * 1000, 3)}
        write(key, value, metadata={**metadata, **clock}, stack_offset=_frames_to_caller())

    def close(self) -> None:
        """Write no more."""
        self._lines.close()


def partial_of(log: Path) -> Path:
    """Where the log stands while its run goes on."""
    return log.with_name(log.name + _PARTIAL)


def partials_in(folder: Path) -> list[Path]:
    """The logs in ``folder`` that nobody has closed."""
    return sorted(folder.glob(f"result_*.txt{_PARTIAL}"))


def closed(partial: Path, why: str) -> Path:
    """Close the log of a run that is over: as ``put_away``, after a last record that says ``why``
    where the run was broken off before it wrote one itself."""
    end(partial, why)
    return put_away(partial)


def end(partial: Path, why: str) -> None:
    """The last record of a run that was broken off: ``init_aborted`` (T2), or after ``run_start``
    ``run_stop`` (T7). Does nothing where there is one, or no space for one."""
    content = partial.read_bytes()
    os.truncate(partial, content.rfind(b"\n") + 1)  # half a record is none
    if last_record(partial, "run_stop", "init_aborted"):
        return
    why = f"broken off: {why}"
    block = last_record(partial, "block_stop")
    file = RecordFile(partial, is_new=False)
    with contextlib.closing(file), contextlib.suppress(UserError):
        if last_record(partial, "run_start"):
            samples = _metadata(block, "samples_count") if block else 0
            metadata = {"samples_count": samples, "reason": why, events.INTERRUPTED_METADATA: True}
            file.write("run_stop", status=events.STATUS_ABORTED, **metadata)
        else:
            file.write("init_aborted", why)


def put_away(partial: Path) -> Path:
    """Give the log of a run that is over its name; returns the new path.

    A run that came to its end counts and gets its own, ``result_<k>.txt``. One that was broken off,
    or whose log has no end, is kept as ``interrupted_result_<k>_<n>.txt``: it never counts (S1).
    """
    log = partial.with_name(partial.name.removesuffix(_PARTIAL))
    stop = last_record(partial, "run_stop")
    counts = stop is not None and _metadata(stop, events.INTERRUPTED_METADATA) is not True
    with partial.open("rb") as written, contextlib.suppress(OSError):
        os.fsync(written.fileno())
    return partial.rename(log if counts else _unused_name(log))


def _unused_name(log: Path) -> Path:
    number = 0
    while (candidate := log.with_name(f"interrupted_{log.stem}_{number}.txt")).exists():
        number += 1
    return candidate


def last_record(path: Path, *keys: str) -> dict[str, Any] | None:
    """The last record of a log with one of these keys."""
    found = None
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            record = json.loads(line.removeprefix(events.MARKER))
            if isinstance(record, dict) and record.get("key") in keys:
                found = record
    return found


def _metadata(record: dict[str, Any], name: str) -> Any:
    return record["metadata"].get(name)


class _WholeLines(logging.Handler):
    """A log file that neither loses a record silently nor keeps half of one."""

    def __init__(self, path: Path, flags: int) -> None:
        super().__init__()
        self._path = path
        with _told(path):
            mode = os.O_WRONLY | os.O_CREAT | os.O_APPEND | flags
            self._descriptor = os.open(path, mode, 0o644)

    def emit(self, record: logging.LogRecord) -> None:
        failure = sys.exc_info()[1]
        if failure is not None and record.levelno >= logging.ERROR:
            raise failure  # mllog would note that it failed and go on
        rest = record.getMessage().encode() + b"\n"
        before = os.fstat(self._descriptor).st_size
        with _told(self._path):
            try:
                while rest:
                    rest = rest[os.write(self._descriptor, rest) :]
            except BaseException:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, before)
                raise

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        super().close()


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path}: cannot write the run log ({error.strerror}); this run does not count. Make "
            "room and give the same command again: finished runs are kept"
        ) from error


def _frames_to_caller() -> int:
    """How far up the stack of ``write`` the line stands that asked for a record, as mllog counts:
    past the run log's own files and the context managers'."""
    own = (__file__, contextlib.__file__, str(Path(__file__).with_name("log.py")))
    frame, frames = sys._getframe(1), 1
    while frame.f_back and frame.f_code.co_filename in own:
        frame, frames = frame.f_back, frames + 1
    return frames
