"""The file of a run log: how records are written, and the name it gets when its run is over.

While the run goes on, the file is called ``result_<k>.txt.partial``. All code that ends a log uses
this module: the run itself, the watcher that outlives a killed run, and the next start.
"""

import contextlib
import json
import logging
import math
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlperf_logging.mllog import mllog

from cepheid.rules import events
from cepheid.rules.errors import UserError
from cepheid.rules.host import ROOT

SAME_MOMENT_SECONDS = 1e-3
READINGS_MAX = 20
_PARTIAL = ".partial"
# Files are named from the rooms on, the same in a checkout (through its links) and an installation.
_ROOMS = re.escape(str(ROOT)) + "(/cepheid)?"


class RecordFile:
    """A run log to which mllog writes each record completely or not at all."""

    def __init__(self, path: Path, *, is_new: bool) -> None:
        self._lines = _WholeLines(path, os.O_EXCL if is_new else 0)
        logger = logging.Logger("cepheid run log", logging.INFO)
        logger.addHandler(self._lines)
        self._mllog = mllog.MLLogger(logger, root_dir=_ROOMS)

    def write(self, key: str, value: object = None, **metadata: object) -> None:
        """Write one record with the time of now; raise UserError if it cannot be written."""
        write = {
            "INTERVAL_START": self._mllog.start,
            "INTERVAL_END": self._mllog.end,
            "POINT_IN_TIME": self._mllog.event,
        }[events.find_event_type(key)]
        time_ms, monotonic_ms = read_clocks()
        write(
            key,
            value,
            time_ms=time_ms,
            metadata={**metadata, events.CLOCK_METADATA: monotonic_ms},
            stack_offset=_count_frames_to_caller(),
        )

    def close(self) -> None:
        """Close the file."""
        self._lines.close()


def read_clocks() -> tuple[int, float]:
    """Read the wall clock and the monotonic clock at one moment, in milliseconds.

    On a busy machine the process may lose its processor between the two readings, and two good
    clocks would seem to disagree (T4). So the reading is made again until it takes no time.
    """
    best_apart, best = math.inf, (0, 0.0)
    for _ in range(READINGS_MAX):
        before = time.monotonic()
        now = time.time()
        after = time.monotonic()
        if after - before < best_apart:
            best_apart, best = after - before, (int(now * 1000), round(after * 1000, 3))
        if best_apart < SAME_MOMENT_SECONDS:
            break
    return best


def make_partial_path(log: Path) -> Path:
    """Return the path of a log while its run goes on."""
    return log.with_name(log.name + _PARTIAL)


def list_partials(folder: Path) -> list[Path]:
    """List the logs in ``folder`` that have not been closed, sorted by name."""
    return sorted(folder.glob(f"result_*.txt{_PARTIAL}"))


def close_log(partial: Path, why: str) -> Path:
    """Close the log of a run that is over, and return its new path.

    A run that was broken off first gets a last record, with ``why`` as the reason.
    """
    write_end(partial, why)
    return rename_log(partial)


def write_end(partial: Path, why: str) -> None:
    """Write the last record of a run that was broken off.

    This is ``run_stop`` (T7) after ``run_start``, and ``init_aborted`` (T2) before it. If the log
    has ``run_stop`` already, it is ``data_read`` (T27). Nothing happens if the log has all that it
    needs, or if there is no space.
    """
    content = partial.read_bytes()
    os.truncate(partial, content.rfind(b"\n") + 1)  # drop a record that was cut off
    if find_last_record(partial, "run_stop", "init_aborted"):
        _say_if_not_digested(partial, why)
        return
    why = f"broken off: {why}"
    block = find_last_record(partial, "block_stop")
    file = RecordFile(partial, is_new=False)
    with contextlib.closing(file), contextlib.suppress(UserError):
        if find_last_record(partial, "run_start"):
            samples = _read_metadata(block, "samples_count") if block else 0
            metadata = {"samples_count": samples, "reason": why, events.INTERRUPTED_METADATA: True}
            file.write("run_stop", status=events.STATUS_ABORTED, **metadata)
        else:
            file.write("init_aborted", why)


def rename_log(partial: Path) -> Path:
    """Give the log of a run that is over its final name, and return the new path.

    A run that came to its end counts, and its log becomes ``result_<k>.txt``. If the run was broken
    off, read other data than it names (T27), or the log has no end, it becomes
    ``interrupted_result_<k>_<n>.txt`` and never counts (S1).
    """
    log = partial.with_name(partial.name.removesuffix(_PARTIAL))
    _say_if_not_digested(partial, "the machine or the process stopped")
    stop = find_last_record(partial, "run_stop")
    has_ended = stop is not None and _read_metadata(stop, events.INTERRUPTED_METADATA) is not True
    named, read = (find_last_record(partial, key) for key in ("data_digest", "data_read"))
    counts = has_ended and (read is None or (named or {}).get("value") == read["value"])
    with partial.open("rb") as written, contextlib.suppress(OSError):
        os.fsync(written.fileno())
    return partial.rename(log if counts else _find_unused_name(log))


def _say_if_not_digested(partial: Path, why: str) -> None:
    """Write that the data were not digested, in the log of a run that reached its targets."""
    stop = find_last_record(partial, "run_stop")
    if stop is None or _read_metadata(stop, "status") != events.STATUS_SUCCESS:
        return
    if find_last_record(partial, "data_read") is None:
        file = RecordFile(partial, is_new=False)
        with contextlib.closing(file), contextlib.suppress(UserError):
            file.write("data_read", f"{events.NOT_DIGESTED}{why}")


def _find_unused_name(log: Path) -> Path:
    number = 0
    while (candidate := log.with_name(f"interrupted_{log.stem}_{number}.txt")).exists():
        number += 1
    return candidate


def find_last_record(path: Path, *keys: str) -> dict[str, Any] | None:
    """Return the last record of a log with one of these keys, or None."""
    last = None
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        with contextlib.suppress(ValueError):
            record = json.loads(line.removeprefix(events.MARKER))
            if isinstance(record, dict) and record.get("key") in keys:
                last = record
    return last


def _read_metadata(record: dict[str, Any], name: str) -> Any:
    return record["metadata"].get(name)


class _WholeLines(logging.Handler):
    """A log file that neither loses a record silently nor keeps half of a record."""

    def __init__(self, path: Path, flags: int) -> None:
        super().__init__()
        self._path = path
        with _report_failure(path):
            mode = os.O_WRONLY | os.O_CREAT | os.O_APPEND | flags
            self._descriptor = os.open(path, mode, 0o644)

    def emit(self, record: logging.LogRecord) -> None:
        failure = sys.exc_info()[1]
        if failure is not None and record.levelno >= logging.ERROR:
            raise failure  # mllog would only report the failure and continue
        rest = record.getMessage().encode() + b"\n"
        before = os.fstat(self._descriptor).st_size
        with _report_failure(self._path):
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
def _report_failure(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path}: cannot write the run log ({error.strerror}); this run does not count. Free "
            "some space and run the same command again: finished runs are kept"
        ) from error


def _count_frames_to_caller() -> int:
    """Count the stack frames from ``write`` to the line that logs the record, as mllog does.

    Frames of the run log's own files and of context managers do not end the count.
    """
    own = (__file__, contextlib.__file__, str(Path(__file__).with_name("log.py")))
    frame, frames = sys._getframe(1), 1
    while frame.f_back and frame.f_code.co_filename in own:
        frame, frames = frame.f_back, frames + 1
    return frames
