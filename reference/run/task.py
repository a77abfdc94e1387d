"""The base of all tasks: configuration, typed hyperparameters and the prepared dataset."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from cepheid.reference.data import generators, store, verification
from cepheid.reference.data.verification import DataRead
from cepheid.reference.machine.ranks import Ranks
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.hyperparameters import parse_hyperparameters
from cepheid.rules import events
from cepheid.rules.errors import UserError


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
            self.hyperparameters = parse_hyperparameters(
                self.hyperparameter_type, config.hyperparameters
            )
        self.folder = generators.folder(config.definition.data, config.data_root)
        self.evaluation_batch = min(self.evaluation_batch, config.definition.evaluation_samples)
        self.samples = 0

    @cached_property
    def data_digest(self) -> str:
        """The digest of the prepared data. A plan makes tasks before there are any."""
        return store.read_manifest(self.folder).digest

    @cached_property
    def training_rows(self) -> np.ndarray:
        """The rows of the dataset to train on, (train_samples,): the first ones."""
        return np.arange(self.definition.train_samples)

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

    def drop_caches(self) -> None:
        """Drop the dataset from the file caches of the operating system (rule T6)."""
        store.drop_caches(self.folder)
