"""The report after a run: made, kept beside the run's log, and shown as plain tables."""

import math
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reference.run import report
from reference.run.report import Table, Value
from rules.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from reference.run.config import RunConfig


def make(
    task: Any, config: "RunConfig", path: Path, console: "Console", energy: Mapping[str, Any]
) -> None:
    """Ask the task for its report, if it has one, and keep it with the run's energy. The run counts
    whatever happens here: what goes wrong is shown and no more."""
    from tools.progress import counted

    if not isinstance(task, report.Reports) and "joules" not in energy:
        return
    try:
        tables: Sequence[Table] = ()
        if isinstance(task, report.Reports):
            with counted("report (not timed, not scored)", "samples", console) as on_progress:
                tables = task.report(on_progress)
        for table in tables:
            console.print(as_text(table), markup=False)
        report.write(path, config, tables, energy)
        console.print(f"run {config.index}: report: {path}")
    except (UserError, OSError) as error:
        console.print(f"run {config.index}: no report: {error}; the run counts all the same")
    except Exception:  # our own bug, told as such; it must not cost the runs that are to come
        traceback.print_exc()
        console.print(f"run {config.index}: no report, see above; the run counts all the same")


def as_text(table: Table) -> str:
    """Title, rows and note of a table, in as many columns as it needs."""
    from tabulate import tabulate

    rows = [_shown(row) for row in table.rows]
    body = tabulate(rows, headers="keys", tablefmt="simple", disable_numparse=True)
    return "\n".join(["", table.title, "", body, *([table.note] if table.note else [])])


def _shown(row: Mapping[str, Value]) -> dict[str, str]:
    """Each number beside its standard error, which is told in two digits: ``0.824 ± 0.013``."""
    shown = {}
    for key, value in row.items():
        error = row.get(f"{key}_error")
        if isinstance(value, float) and isinstance(error, float):
            digits = _decimals(error)
            shown[key] = f"{value:.{digits}f} ± {error:.{digits}f}"
        elif key.removesuffix("_error") not in shown:
            shown[key] = f"{value:.4g}" if isinstance(value, float) else f"{value}"
    return shown


def _decimals(error: float) -> int:
    if not (math.isfinite(error) and error > 0):
        return 4
    return max(0, 1 - math.floor(math.log10(error)))
