"""The callbacks through which sessions and measurements show what they do; tools provide them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from cepheid.reference.data import generators
from cepheid.reference.run.config import RunConfig
from cepheid.reference.run.progress import OnProgress
from cepheid.rules.definition import Definition

OnCount = Callable[[int, int], None]
"""Called with the number of items done and the number of items in all."""


class LiveCheck(Protocol):
    """A judge of one run log while it grows."""

    def watch(self, show: OnProgress) -> OnProgress:
        """Return a callback that calls ``show``, and judges the log where a stage has ended."""

    def judge_result(self) -> bool:
        """Judge the whole log, which now has its own name, and the result as far as it goes.

        Return True if neither has an error that the runs to come cannot fix.
        """


class Observer(Protocol):
    """A display for sessions and measurements. Only that of the first rank shows anything."""

    def tell(self, message: str) -> None:
        """Show one message."""

    def count(self, title: str, unit: str = "") -> AbstractContextManager[OnCount]:
        """Return a display for work that is counted; without a unit it leaves no line behind."""

    def show_run(self, definition: Definition) -> AbstractContextManager[OnProgress]:
        """Return a display for the progress of one run."""


class SessionObserver(Observer, Protocol):
    """An observer of a session, which also has its log judged."""

    def check_live(self, log: Path) -> LiveCheck:
        """Return the judge of a run log, given the name that it gets when the run has ended."""

    def judge_finished(self, folder: Path) -> bool:
        """Judge the runs that the result in ``folder`` has already, and tell what is wrong.

        Return True if there is no error that the runs to come cannot fix.
        """


def prepare_data(definition: Definition, data_root: Path, observer: Observer) -> Path:
    """Prepare what is missing of the dataset of a benchmark, and return its folder.

    Raises UserError as ``cepheid.reference.data.generators.prepare`` does.
    """
    with observer.count("preparing data", "samples") as on_count:
        folder = generators.prepare(definition.data, data_root, on_count)
    left = generators.count_train_samples(definition.data, data_root)
    if left and left < definition.train_samples:
        observer.tell(
            f"note: {left:,} training samples are left, {definition.train_samples:,} are defined: "
            f"runs use what is left, and count when a round has that number (T10; "
            f"`cepheid data {definition.name} --propose-digest`)"
        )
    return folder


def adopt_counts(config: RunConfig) -> RunConfig:
    """Return the configuration with the number of training samples that the prepared data have."""
    count = generators.count_train_samples(config.definition.data, config.data_root)
    if count is None:
        return config
    return replace(config, definition=replace(config.definition, counted_train_samples=count))
