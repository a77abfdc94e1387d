"""Tasks and their timed loops: what all have, those that generate, and the run of one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from cepheid.reference.data import generators, store, verification
from cepheid.reference.data.verification import DataRead
from cepheid.reference.machine.ranks import Ranks
from cepheid.reference.run import generate, train
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.generation import GenerationWorkload, Times
from cepheid.reference.run.log import RunLogWriter
from cepheid.reference.run.progress import OnProgress, Outcome, Progress, Stage, ignore_progress
from cepheid.reference.run.report import Table
from cepheid.rules import events
from cepheid.rules.errors import UserError
from cepheid.rules.events import Kind


class BenchmarkTask:
    """A task with a configuration, ranks and a prepared dataset; independent of the framework.

    A subclass sets ``hyperparameter_type`` to its dataclass of hyperparameters and annotates
    ``hyperparameters`` with it. ``samples`` counts the samples trained over all ranks.
    An evaluation takes ``evaluation_batch`` samples at a time, or the whole set if it is smaller.
    """

    evaluation_batch = 256
    hyperparameter_type: type[Any] | None = None
    hyperparameters: Any
    ranks: Any

    def __init__(self, config: RunConfig, ranks: Ranks) -> None:
        self.config, self.definition, self.ranks = config, config.definition, ranks
        if self.hyperparameter_type is not None:
            self.hyperparameters = config.read(self.hyperparameter_type)
        self.folder = generators.folder(config.definition.data, config.data_root)
        self.evaluation_batch = min(self.evaluation_batch, config.definition.evaluation_samples)
        self.samples = 0

    @cached_property
    def data_digest(self) -> str:
        """The digest of the prepared data. A plan makes tasks before there are any."""
        return store.read_manifest(self.folder).digest

    @cached_property
    def evaluation_rows(self) -> np.ndarray:
        """The rows of the dataset to evaluate on, (evaluation_samples,): those that follow."""
        train = self.definition.train_samples
        return np.arange(train, train + self.definition.evaluation_samples)

    def digest_data(self) -> DataRead:
        """Return the digest of the bytes on the disks of all ranks, on every rank (rule T27).

        The ranks of a machine share the work, so each copy of the dataset is read once.
        """
        shares = self.ranks.ranks_per_node
        changes: verification.Changes = {}
        why = ""
        try:
            changes = verification.find_changes(self.folder, self.ranks.rank % shares, shares)
        except UserError as error:
            why = str(error)
        answers = self.ranks.all_gather_object((changes, why))
        if failed := [reason for _, reason in answers if reason]:
            return DataRead(f"{events.NOT_DIGESTED}{failed[0]}", failed[0])
        manifest = store.read_manifest(self.folder)
        merged = {place: digest for found, _ in answers for place, digest in found.items()}
        digest = verification.compute_digest(manifest, merged)
        if digest == self.data_digest:
            return DataRead(digest)
        where = f"{self.folder}: was prepared again while the run went on"
        if merged:
            where = verification.describe_changes(self.folder, manifest, merged)
        return DataRead(digest, where)

    def list_notes(self) -> Sequence[str]:
        """Return what a plan should tell about the settings though it is allowed."""
        return ()

    def drop_caches(self) -> bool:
        """Drop the dataset from the file caches of the operating system (rule T6).

        Returns False where that is not possible.
        """
        return store.drop_caches(self.folder)


class GenerationTask(BenchmarkTask):
    """A task of ``cepheid.reference.run.generate`` from what a benchmark declares.

    ``maker`` makes the images; the dataset is that of the definition.
    """

    def __init__(self, workload: GenerationWorkload, config: RunConfig, ranks: Ranks) -> None:
        super().__init__(config, ranks)
        self.maker = workload.make(config, ranks)
        self.weights_digest = self.maker.weights_digest
        self.times: Sequence[Times] = ()
        self.build, self.warm_up = self.maker.build, self.maker.warm_up
        self.sample, self.decode = self.maker.sample, self.maker.decode
        self.synchronize, self.evaluate = self.maker.synchronize, self.maker.evaluate
        self.project = self.maker.project
        self.implementation, self.pictures = self.maker.implementation, self.maker.pictures

    def open_data(self) -> None:
        """Open the dataset of the definition."""
        self.maker.read_data(generators.find_source(self.definition.data), self.folder)

    def keep_times(self, times: Sequence[Times]) -> None:
        """Keep the times for the report."""
        self.times = times

    def report(self, on_progress: Callable[[int, int], None]) -> Sequence[Table]:
        """Return the tables of the times."""
        on_progress(1, 1)
        return self.maker.report(self.times)


LOOPS: Mapping[Kind, Callable[..., Outcome]] = MappingProxyType(
    {"train": train.run, "generate": generate.run}
)


def run_task(
    task: Any, config: RunConfig, log: RunLogWriter, on_progress: OnProgress = ignore_progress
) -> Outcome:
    """Run a task by the loop for its kind of benchmark, and return how the run ended.

    Then, outside the clock, what it read is digested and logged (rule T27).

    ``task`` keeps the protocol of that loop: ``train.Task`` or ``generate.Generator``.
    """
    run = LOOPS[config.definition.kind]
    outcome = run(config.definition, task, config, log, on_progress)
    on_progress(Progress(Stage.VERIFYING, outcome.samples))
    read = task.digest_data()
    log.event("data_read", read.digest)
    return replace(outcome, data_problem=read.problem)
