"""Writing a run log: one method for each moment of a run, in the order of the rules.

The file is written under a temporary name and gets its own name when the run has ended, so that a
log under its own name is always a whole one (``logfile``). Only the first rank writes.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from reference.run import logfile
from reference.run.config import RunConfig
from reference.run.logfile import RecordFile
from rules import events, rounds
from rules.definition import Block
from rules.errors import UserError


class RunLogWriter:
    """Writes the records of one run to ``path`` (``None`` on all ranks but the first: no-op).

    Raises UserError where the disk is full or the place cannot be written.
    """

    def __init__(self, path: Path | None) -> None:
        self._samples = 0
        self._partial = logfile.partial_of(path) if path else None
        self._file = RecordFile(self._partial, is_new=True) if self._partial else None

    def close(self) -> Path | None:
        """Close the log of a run that is over, under the name that it deserves; returns that.

        ``logfile.put_away`` says which one. Nothing is written that the run has not written, unless
        an interruption came just when it was to write its last record.
        """
        if self._file is None or self._partial is None:
            return None
        self._file.close()
        return logfile.closed(self._partial, "interrupted")

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
            self._break_off(error)
            raise

    @contextmanager
    def initialisation(self) -> Iterator[None]:
        """init_start … init_stop."""
        self.event("init_start")
        yield
        self.event("init_stop")

    def settings(self, config: RunConfig) -> None:
        """The values in use, from the object that the optimizer and the loader receive (T2)."""
        self.event("seed", config.seed, origin=config.seed_origin)
        self.event("definition_digest", config.definition.digest)
        self.event("code_digest", config.code_digest)
        if config.task_digest:
            self.event("task_digest", config.task_digest)
        self.event("train_samples", config.definition.train_samples)
        self.event("eval_samples", config.definition.evaluation_samples)
        for key, value in config.hyperparameters.items():
            self.event(key, value)

    @contextmanager
    def timed_run(self) -> Iterator["TimedRun"]:
        """run_start … exactly one run_stop, also on an error and on Ctrl-C."""
        timed = TimedRun()
        self.event("run_start")
        try:
            yield timed
        except BaseException as error:
            self._break_off(error)
            raise
        reason = {"reason": timed.reason} if timed.reason else {}
        self.event("run_stop", status=timed.status, samples_count=self._samples, **reason)

    def block_start(self, block: Block) -> None:
        """Training towards an evaluation begins."""
        self.event("block_start", block_num=block.number, samples_count=block.first_sample)

    def block_stop(self, block: Block, train_loss: float) -> None:
        """Training pauses; ``train_loss`` is the block's mean."""
        self._samples = block.samples
        self.event(
            "block_stop", block_num=block.number, samples_count=block.samples, train_loss=train_loss
        )

    def eval_start(self, block: Block) -> None:
        """Evaluation of the whole evaluation set begins."""
        self.event("eval_start", samples_count=block.samples)

    def eval_stop(self, block: Block) -> None:
        """Evaluation ends."""
        self.event("eval_stop", samples_count=block.samples)

    def quality(self, metrics: Mapping[str, float], first: str, epoch: float) -> None:
        """All metrics of an evaluation; the first quality metric is the event's value."""
        self.event(
            "eval_accuracy",
            metrics[first],
            samples_count=self._samples,
            epoch_num=epoch,
            metrics=dict(metrics),
        )

    # Of a benchmark that generates:

    def generation_start(self, images: int) -> None:
        """``images`` images at a time, from now on."""
        self.event("generation_start", images_count=images)

    def generation_stop(
        self, images: int, sampling_seconds: Sequence[float], decoding_seconds: Sequence[float]
    ) -> None:
        """All repetitions of that are over, and took so long each."""
        self._samples += images * len(sampling_seconds)
        measured = (list(sampling_seconds), list(decoding_seconds))
        times = dict(zip(events.GENERATION_SECONDS, measured, strict=True))
        self.event("generation_times", times, images_count=images)
        self.event("generation_stop", images_count=images)

    def judging_start(self) -> None:
        """The images that were generated last are looked at."""
        self.event("eval_start", samples_count=self._samples)

    def judgement(self, metrics: Mapping[str, float], first: str) -> None:
        """All metrics of them; the first quality metric is the event's value."""
        self.event(
            "eval_accuracy", metrics[first], samples_count=self._samples, metrics=dict(metrics)
        )

    def judging_stop(self) -> None:
        """They have been looked at."""
        self.event("eval_stop", samples_count=self._samples)

    def event(self, key: str, value: object = None, **metadata: object) -> None:
        """One record; ``events.event_type`` says whether it begins or ends an interval."""
        if self._file is not None:
            self._file.write(key, value, **metadata)

    def _break_off(self, error: BaseException) -> None:
        if self._partial is not None:
            logfile.end(self._partial, _reason(error))


class TimedRun:
    """How the timed part ended. Aborted until something else is said."""

    def __init__(self) -> None:
        self.status = events.STATUS_ABORTED
        self.reason = ""

    def end(self, *, reached: bool, reason: str = "") -> None:
        """Success if every quality target holds, else aborted, and why."""
        self.status = events.STATUS_SUCCESS if reached else events.STATUS_ABORTED
        self.reason = reason


def _reason(error: BaseException) -> str:
    """Why a run was broken off, in one line."""
    lines = str(error).strip().splitlines()
    text = lines[0][:300] if lines else ""
    if text and isinstance(error, UserError | KeyboardInterrupt):
        return text
    return ": ".join(filter(None, [type(error).__name__, text]))
