"""What a field asks of a model beside the benchmark's quality: tables, made after a run.

Neither timed nor scored, and nothing of it stands in the run log: a report is made when the log is
closed, on the first rank alone.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from reference.run.config import RunConfig
from rules.host import atomic_write

Value = str | int | float


@dataclass(frozen=True)
class Table:
    """Rows with the same keys. ``x_error`` is the standard error of ``x``; ``note`` is what a
    reader must know to read the numbers."""

    title: str
    rows: tuple[Mapping[str, Value], ...]
    note: str = ""


@runtime_checkable
class Reports(Protocol):
    """A task that has more to say after a run than its quality."""

    def report(self, on_progress: Callable[[int, int], None]) -> Sequence[Table]:
        """The tables, from the model as the run left it. On several ranks only the first one is
        asked, so it must not wait for the others. ``on_progress`` is told what is done, and of how
        much."""


def write(
    path: Path, config: RunConfig, tables: Sequence[Table], energy: Mapping[str, Any]
) -> None:
    """Write the tables as JSON, with the run that they belong to; appears in one step.

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
                "rows": [{key: _finite(value) for key, value in row.items()} for row in table.rows],
            }
            for table in tables
        ],
    }
    atomic_write(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def _finite(value: Value) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
