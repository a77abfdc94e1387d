"""Writing a run log through mllog: one method for each moment of a run, in the order of the rules.

The file is written under a temporary name, ``<name>.partial``, and gets its own name when the run
has ended, so that a log under its own name is always a whole one. Only the first rank writes.
"""

import contextlib
import logging
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mlperf_logging.mllog import mllog

from reference.config import RunConfig
from reference.results import unused_name
from rules import events, rounds
from rules.definition import ROOT, Block
from rules.errors import UserError


class RunLogWriter:
    """Writes the records of one run to ``path`` (``None`` on all ranks but the first: no-op)."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._samples = 0
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        self.partial.unlink(missing_ok=True)
        self._handler = _LogFile(self.partial, mode="x", encoding="utf-8")
        logger = logging.Logger("cepheid run log", logging.INFO)
        logger.addHandler(self._handler)
        self._mllog = mllog.MLLogger(logger, root_dir=re.escape(str(ROOT)))

    @property
    def partial(self) -> Path:
        """Where the log stands while the run goes on."""
        assert self._path is not None
        return self._path.with_name(self._path.name + ".partial")

    def close(self, *, counts: bool) -> Path | None:
        """Close the file. A log that counts gets its own name, another one a name that says that it
        was interrupted; both are kept. Returns where it is now."""
        if self._path is None:
            return None
        try:
            with self.partial.open("rb") as written:  # every record was flushed when it was written
                os.fsync(written.fileno())
            self._handler.close()
        except OSError as error:
            raise _cannot_write(self.partial, error) from error
        final = self._path if counts else unused_name(self._path.parent, self._path.stem)
        self.partial.rename(final)
        return final

    # What is written, from the first line to the last.

    def identity(self, config: RunConfig) -> None:
        """Whose run of what this is."""
        self.event("submission_round", rounds.CURRENT)
        self.event("submission_org", config.submitter)
        self.event("submission_platform", config.system)
        self.event("submission_division", config.division)
        self.event("submission_benchmark", config.definition.name)
        self.event("submission_scale", config.definition.scale)

    @contextmanager
    def before_the_clock(self) -> Iterator[None]:
        """All that precedes run_start; an error there is told as ``init_aborted``."""
        try:
            yield
        except BaseException as error:
            self.event("init_aborted", _reason(error))
            raise

    @contextmanager
    def initialisation(self) -> Iterator[None]:
        """init_start … init_stop."""
        self._interval("init_start")
        yield
        self._interval("init_stop")

    def settings(self, config: RunConfig) -> None:
        """The values in use, from the object that the optimizer and the loader receive (T2)."""
        self.event("seed", config.seed, origin=config.seed_origin)
        self.event("definition_digest", config.definition.digest)
        self.event("code_digest", config.code_digest)
        self.event("train_samples", config.definition.train_samples)
        self.event("eval_samples", config.definition.evaluation_samples)
        for key, value in config.hyperparameters.items():
            self.event(key, value)

    @contextmanager
    def timed_run(self) -> Iterator["TimedRun"]:
        """run_start … exactly one run_stop, also on an error and on Ctrl-C."""
        timed = TimedRun()
        self._interval("run_start")
        try:
            yield timed
        except BaseException as error:
            timed.end(reached=False, reason=_reason(error))
            raise
        finally:
            reason = {"reason": timed.reason} if timed.reason else {}
            self._interval("run_stop", status=timed.status, samples_count=self._samples, **reason)

    def block_start(self, block: Block) -> None:
        """Training towards an evaluation begins."""
        self._interval("block_start", block_num=block.number, samples_count=block.first_sample)

    def block_stop(self, block: Block, train_loss: float) -> None:
        """Training pauses; ``train_loss`` is the block's mean."""
        self._samples = block.samples
        self._interval(
            "block_stop", block_num=block.number, samples_count=block.samples, train_loss=train_loss
        )

    def eval_start(self, block: Block) -> None:
        """Evaluation of the whole evaluation set begins."""
        self._interval("eval_start", samples_count=block.samples)

    def eval_stop(self, block: Block) -> None:
        """Evaluation ends."""
        self._interval("eval_stop", samples_count=block.samples)

    def quality(self, metrics: Mapping[str, float], first: str, epoch: float) -> None:
        """All metrics of an evaluation; the first quality metric is the event's value."""
        self.event(
            "eval_accuracy",
            metrics[first],
            samples_count=self._samples,
            epoch_num=epoch,
            metrics=dict(metrics),
        )

    def event(self, key: str, value: object = None, **metadata: object) -> None:
        """A point in time."""
        self._write("POINT_IN_TIME", key, value, **metadata)

    def _interval(self, key: str, **metadata: object) -> None:
        self._write(events.EVENTS[key].event_type, key, **metadata)

    def _write(self, event_type: str, key: str, value: object = None, **metadata: object) -> None:
        if self._path is None:
            return
        write = {
            "INTERVAL_START": self._mllog.start,
            "INTERVAL_END": self._mllog.end,
            "POINT_IN_TIME": self._mllog.event,
        }[event_type]
        clock = {events.CLOCK_METADATA: round(time.monotonic() * 1000, 3)}
        write(key, value, metadata={**metadata, **clock}, stack_offset=_frames_to_caller())


class _LogFile(logging.FileHandler):
    """A log file that does not lose a record silently: ``logging`` would only print the error."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        error = sys.exc_info()[1]
        raise _cannot_write(Path(self.baseFilename), error) from error


def _cannot_write(path: Path, error: BaseException | None) -> UserError:
    return UserError(f"{path}: cannot write the run log: {error}; this run does not count")


class TimedRun:
    """How the timed part ended. Aborted until something else is said."""

    def __init__(self) -> None:
        self.status = events.STATUS_ABORTED
        self.reason = ""

    def end(self, *, reached: bool, reason: str = "") -> None:
        """Success if every quality target holds, else aborted, and why."""
        self.status = events.STATUS_SUCCESS if reached else events.STATUS_ABORTED
        self.reason = reason


def _frames_to_caller() -> int:
    """How far up the stack of ``_write`` the line stands that asked for a record, as mllog counts:
    past this file and the context managers'."""
    frame, frames = sys._getframe(1), 1
    while frame.f_back and frame.f_code.co_filename in (__file__, contextlib.__file__):
        frame, frames = frame.f_back, frames + 1
    return frames


def _reason(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:300]}" if text else type(error).__name__
