"""The writer of a run log: one method for each moment of a run, in the order of the rules.

The file is written under a temporary name and gets its own name when the run has ended, so that a
log under its own name is always complete (``logfile``). Only the first rank writes.
"""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from cepheid.reference.machine import use
from cepheid.reference.run import logfile
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.logfile import RecordFile
from cepheid.rules import events
from cepheid.rules.definition import Block, Definition
from cepheid.rules.errors import UserError


class RunLogWriter:
    """The log of one run, written to ``path``; with None, on all ranks but the first, a no-op.

    Every method raises UserError where the disk is full or the place cannot be written.
    """

    def __init__(self, path: Path | None) -> None:
        self._samples = 0
        self._partial = logfile.make_partial_path(path) if path else None
        self._file = RecordFile(self._partial, is_new=True) if self._partial else None
        self._load_before = use.read_load()

    def close(self) -> Path | None:
        """Close the log of a run that is over, and return its final path.

        ``logfile`` describes which name it gets. Nothing is written that the run has not written,
        unless an interruption came just when it was to write its last record.
        """
        if self._file is None or self._partial is None:
            return None
        self._file.close()
        return logfile.close_log(self._partial, "interrupted")

    # The records, from the first line to the last.

    def write_identity(self, config: RunConfig) -> None:
        """Write who runs what, in which division and round."""
        self.event("submission_round", events.CURRENT_ROUND)
        self.event("submission_org", config.submitter)
        self.event("submission_platform", config.system)
        self.event("submission_division", config.division)
        self.event("submission_benchmark", config.definition.name)
        self.event("submission_scale", config.definition.scale)

    @contextmanager
    def before_the_clock(self) -> Iterator[None]:
        """Enclose all that precedes run_start; an error there is logged as ``init_aborted``."""
        try:
            yield
        except BaseException as error:
            self._break_off(error)
            raise

    @contextmanager
    def initialisation(self) -> Iterator[None]:
        """Enclose the block in init_start and init_stop."""
        self.event("init_start")
        yield
        self.event("init_stop")

    def write_settings(self, config: RunConfig) -> None:
        """Write the values from the very object that optimizer and loader receive (T2)."""
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
    def time_run(self) -> Iterator["TimedRun"]:
        """Enclose the block in run_start and exactly one run_stop, also on errors and Ctrl-C.

        After run_stop of a run that reached its targets comes how much of the machine it had.
        """
        timed = TimedRun()
        gc.collect()
        gc.freeze()  # what stands before the clock is not searched for garbage while it runs
        before = use.read()
        self.event("run_start")
        try:
            yield timed
        except BaseException as error:
            self._break_off(error)
            raise
        finally:
            gc.unfreeze()
        reason = {"reason": timed.reason} if timed.reason else {}
        self.event("run_stop", status=timed.status, samples_count=self._samples, **reason)
        after = use.read()
        if timed.status == events.STATUS_ABORTED or before is None or after is None:
            return
        if found := use.describe(self._load_before, before, after):
            self.event("machine_use", found)

    def start_block(self, block: Block) -> None:
        """Write that training towards the next evaluation begins."""
        self.event("block_start", block_num=block.number, samples_count=block.first_sample)

    def stop_block(self, block: Block, train_loss: float) -> None:
        """Write that training pauses; ``train_loss`` is the mean of the block."""
        self._samples = block.samples
        self.event(
            "block_stop", block_num=block.number, samples_count=block.samples, train_loss=train_loss
        )

    def start_generation(self, images: int) -> None:
        """Write that repetitions of ``images`` images at a time begin."""
        self.event("generation_start", images_count=images)

    def stop_generation(
        self, images: int, sampling_seconds: Sequence[float], decoding_seconds: Sequence[float]
    ) -> None:
        """Write that they are over, and the seconds of each."""
        self._samples += images * len(sampling_seconds)
        measured = (list(sampling_seconds), list(decoding_seconds))
        times = dict(zip(events.GENERATION_SECONDS, measured, strict=True))
        self.event("generation_times", times, images_count=images)
        self.event("generation_stop", images_count=images)

    def start_evaluation(self) -> None:
        """Write that the evaluation of all samples so far begins."""
        self.event("eval_start", samples_count=self._samples)

    def write_quality(
        self, metrics: Mapping[str, float], definition: Definition, epoch: float | None = None
    ) -> None:
        """Write all metrics of an evaluation; the value is the first one of the definition.

        Raises UserError where a metric of the definition is missing.
        """
        names = [target.metric for target in definition.quality]
        missing = [name for name in (*names, *definition.reported) if name not in metrics]
        if missing:
            raise UserError(
                f"evaluate() of the task returns {', '.join(metrics) or 'no metric'}, but "
                f"benchmarks/{definition.name}/benchmark.yaml also expects {', '.join(missing)}; "
                "fix: use the same names in both"
            )
        when = {} if epoch is None else {"epoch_num": epoch}
        quality = {"samples_count": self._samples, **when, "metrics": dict(metrics)}
        self.event("eval_accuracy", metrics[names[0]], **quality)

    def stop_evaluation(self) -> None:
        """Write that the evaluation ends."""
        self.event("eval_stop", samples_count=self._samples)

    def event(self, key: str, value: object = None, **metadata: object) -> None:
        """Write one record; its key decides whether it begins or ends an interval."""
        if self._file is not None:
            self._file.write(key, value, **metadata)

    def _break_off(self, error: BaseException) -> None:
        if self._partial is not None:
            logfile.write_end(self._partial, _describe(error))


class TimedRun:
    """The end of the timed part: aborted, until ``end`` says something else."""

    def __init__(self) -> None:
        self.status = events.STATUS_ABORTED
        self.reason = ""

    def end(self, *, reached: bool, reason: str = "") -> None:
        """Note success if every quality target holds; else that the run was aborted, and why."""
        self.status = events.STATUS_SUCCESS if reached else events.STATUS_ABORTED
        self.reason = reason


def _describe(error: BaseException) -> str:
    """Return in one line why a run was broken off."""
    lines = str(error).strip().splitlines()
    text = lines[0][:300] if lines else ""
    if text and isinstance(error, UserError | KeyboardInterrupt):
        return text
    return ": ".join(filter(None, [type(error).__name__, text]))
