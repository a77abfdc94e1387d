"""The report after a run: tables with what a field wants to know beside the benchmark's quality.

It is neither timed nor scored, and it does not enter the run log. The first rank alone makes it
after the log is closed.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from cepheid.reference.run.config import RunConfig
from cepheid.rules.host import atomic_write

Value = str | int | float


@dataclass(frozen=True)
class Table:
    """Rows with the same keys; ``x_error`` is the standard error of ``x``.

    ``note`` explains what a reader must know to understand the numbers.
    """

    title: str
    rows: tuple[Mapping[str, Value], ...]
    note: str = ""


@runtime_checkable
class Reports(Protocol):
    """A task that reports more than its quality after a run."""

    def report(self, on_progress: Callable[[int, int], None]) -> Sequence[Table]:
        """Return the tables, from the model as the run left it.

        Only the first rank calls it, so it must not wait for other ranks. ``on_progress`` is called
        with the number of samples done and the number in all.
        """


def write(
    path: Path, config: RunConfig, tables: Sequence[Table], energy: Mapping[str, Any]
) -> None:
    """Write the tables as JSON, with the run that they belong to, atomically.

    ``energy`` comes from ``energy.report_energy``. A value that is not finite is written as null.
    Raises OSError.
    """
    content = {
        "benchmark": config.definition.name,
        "scale": config.definition.scale,
        "definition_digest": config.definition.digest,
        "code_digest": config.code_digest,
        "run": config.index,
        "seed": config.seed,
        "energy": dict(energy),
        "tables": [
            {
                "title": table.title,
                "note": table.note,
                "rows": [
                    {key: _make_finite(value) for key, value in row.items()} for row in table.rows
                ],
            }
            for table in tables
        ],
    }
    atomic_write(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def _make_finite(value: Value) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
