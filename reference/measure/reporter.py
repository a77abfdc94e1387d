"""What a measurement reports while it runs. The tools show it on a terminal."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from reference.run.progress import OnProgress
from rules.definition import Definition

OnCount = Callable[[int, int], None]
"""Called with the number of items that are done and the number of all."""

Display = AbstractContextManager[OnProgress]
"""Shows one run; the function that it yields is the run's ``on_progress``."""


class Reporter(Protocol):
    """Shows a user what a measurement does."""

    def say(self, text: str) -> None:
        """Show one line of text."""

    def prepare_data(self, definition: Definition, data_root: Path) -> None:
        """Prepare the dataset of a benchmark, and show how far that is."""

    def count(self, title: str, unit: str) -> AbstractContextManager[OnCount]:
        """Show how many items of some work are done."""

    def display(self, definition: Definition) -> Display:
        """Show the progress of one run of a benchmark."""
