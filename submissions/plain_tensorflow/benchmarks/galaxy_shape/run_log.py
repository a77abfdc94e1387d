"""A run log of round v1.0 by the standard library alone, after rules/training.md (T1 to T4, T7)."""

import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

STARTS = {"init_start", "run_start", "block_start", "eval_start"}
STOPS = {"init_stop", "run_stop", "block_stop", "eval_stop"}


class RunLog:
    """The file of one run: every record is in it, whole, as soon as its event has happened."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            sys.exit(f"{path}: this run has been made; its log is not overwritten (rule T15)")
        self._path, self._partial = path, path.with_name(f"{path.name}.partial")
        if self._partial.exists():  # of a run that was killed
            self._partial.rename(self._unused_name())
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends a run as Ctrl-C does
        self._file = open(self._partial, "x", encoding="utf-8")

    def event(self, key: str, value: object = None, **metadata: object) -> None:
        """One record, with where in the program it was written and both clocks."""
        kind = "INTERVAL_START" if key in STARTS else "INTERVAL_END" if key in STOPS else ""
        caller = sys._getframe(1)
        where = {"file": Path(caller.f_code.co_filename).name, "lineno": caller.f_lineno}
        record = {
            "namespace": "",
            "time_ms": time.time_ns() // 1_000_000,
            "event_type": kind or "POINT_IN_TIME",
            "key": key,
            "value": value,
            "metadata": {**where, **metadata, "monotonic_ms": time.monotonic_ns() / 1e6},
        }
        self._file.write(f":::MLLOG {json.dumps(record, allow_nan=False)}\n")
        self._file.flush()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """The log gets its name if the run came to its end, whatever that was; the log of a run
        that broke off is kept as an interrupted one, which never counts."""
        name = self._unused_name()
        try:
            yield
            name = self._path
        finally:
            os.fsync(self._file.fileno())
            self._file.close()
            self._partial.rename(name)

    def _unused_name(self) -> Path:
        names = (f"interrupted_{self._path.stem}_{number}.txt" for number in itertools.count())
        return next(path for path in map(self._path.with_name, names) if not path.exists())
