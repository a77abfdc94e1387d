"""The terminal on which the tools show what sessions and measurements do."""

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import IO

from rich.console import Console
from tabulate import tabulate

from cepheid.reference.run.progress import OnProgress
from cepheid.reference.run.report import Table, Value
from cepheid.reference.session.observer import OnCount
from cepheid.rules.definition import Definition
from cepheid.tools.console.progress import show_count, show_run


class Terminal:
    """An observer (``cepheid.reference.session.observer``) that prints; a quiet one prints nothing.

    Where ``file`` is given, it prints into that file as on a terminal.
    """

    def __init__(self, *, quiet: bool = False, file: IO[str] | None = None) -> None:
        self.console = Console(
            quiet=quiet,
            file=file,
            force_terminal=True if file else None,
            highlight=False,
            soft_wrap=True,
        )

    def tell(self, message: str) -> None:
        """Print one message; brackets in paths are no markup."""
        self.console.print(message, markup=False)

    def count(self, title: str, unit: str) -> AbstractContextManager[OnCount]:
        """Return a progress bar, with the time left, for work that is counted."""
        return show_count(title, unit, self.console)

    def show_run(self, definition: Definition) -> AbstractContextManager[OnProgress]:
        """Return the display for a run of this kind of benchmark."""
        return show_run(definition, self.console)

    def show_table(self, table: Table) -> None:
        """Print one table of a report."""
        self.tell(format_table(table))


def format_table(table: Table) -> str:
    """Format title, rows and note of a table as plain text."""
    rows = [_format_row(row) for row in table.rows]
    body = tabulate(rows, headers="keys", tablefmt="simple", disable_numparse=True)
    return "\n".join(["", table.title, "", body, *([table.note] if table.note else [])])


def _format_row(row: Mapping[str, Value]) -> dict[str, str]:
    """Format each number with its standard error in two digits: ``0.824 ± 0.013``."""
    cells = {}
    for key, value in row.items():
        error = row.get(f"{key}_error")
        if isinstance(value, float) and isinstance(error, float):
            digits = _count_decimals(error)
            cells[key] = f"{value:.{digits}f} ± {error:.{digits}f}"
        elif key.removesuffix("_error") not in cells:
            cells[key] = f"{value:.4g}" if isinstance(value, float) else f"{value}"
    return cells


def _count_decimals(error: float) -> int:
    """Return the decimals at which a standard error has two digits, 4 where it has no meaning."""
    if not (math.isfinite(error) and error > 0):
        return 4
    return max(0, 1 - math.floor(math.log10(error)))
