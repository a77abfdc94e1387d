"""How the tools show the progress of a measurement."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from rich.console import Console

from reference.measure.reporter import Display, OnCount
from rules.definition import Definition
from tools.progress import prepare_data, show_count, show_run

BUSY_SHARE = 0.5  # of the processors: beyond that load other work disturbs the measurement


class Terminal:
    """A ``reference.measure.reporter.Reporter`` that prints; a quiet one prints nothing."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(quiet=quiet, highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """Print a text as it is."""
        self.console.print(text, markup=False)

    def count(self, title: str, unit: str) -> AbstractContextManager[OnCount]:
        """Show a bar that counts, with the time left."""
        return show_count(title, unit, self.console)

    def prepare_data(self, definition: Definition, data_root: Path) -> None:
        """Prepare the dataset of a benchmark, with a bar."""
        prepare_data(definition, data_root, self.console)

    def display(self, definition: Definition) -> Display:
        """Show the progress of one run."""
        return show_run(definition, self.console)

    def warn_of_load(self, load: float) -> None:
        """Warn the reader if ``load``, measured beforehand, shows other work on the machine."""
        if load > BUSY_SHARE * (os.cpu_count() or 1):
            self.say(
                f"\nother work was running here (load {load:.1f} before this began): absolute "
                "times are unreliable, ratios approximate"
            )


def make_unseen_display() -> Callable[[Definition], Display]:
    """Return what makes displays that draw as on a terminal, where a display does most."""
    nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  # until the process ends
    console = Console(file=nowhere, force_terminal=True)
    return lambda definition: show_run(definition, console)
