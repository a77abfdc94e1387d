"""Rows as data: CSV and JSON."""

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from compliance.leaderboard.row import Row
from rules.generation import METRICS

COLUMNS = (
    "submitter", "system", "division", "benchmark", "scale", "nodes", "accelerators", "accelerator",
    "processor", "framework", "runs", "required", "converged", "score_minutes", "score_low",
    "score_high", "provisional_minutes", "samples_to_target", "epochs_to_target",
    "rcp_verdict", "rcp_factor", "verdict", "provisional_targets",
    "energy_joules", "not_measured", "seeds",
)  # fmt: skip


def _generation_columns(row: Row) -> dict[str, float | None]:
    """Each score of rule T26 and the ends of its interval; None where there is none."""
    columns: dict[str, float | None] = {}
    for metric in METRICS:
        found = row.generation.get(metric.name)
        columns[metric.name] = found.mean if found else None
        columns[f"{metric.name}_low"] = found.low if found else None
        columns[f"{metric.name}_high"] = found.high if found else None
    return columns


def _columns(row: Row) -> dict[str, Any]:
    return {**{name: getattr(row, name) for name in COLUMNS}, **_generation_columns(row)}


def as_json(table: Sequence[Row]) -> str:
    """A list with one object for each row; null where there is no number."""
    return json.dumps([row_object(row) for row in table], indent=2)


def row_object(row: Row) -> dict[str, Any]:
    """A row as plain JSON: every column, the quality, and what was found."""
    return {
        **_columns(row),
        "quality": dict(row.quality),
        "reasons": list(row.reasons),
        "findings": [finding.as_json() for finding in row.findings],
    }


def as_csv(table: Sequence[Row]) -> str:
    """One line for each row, the reasons in one column; empty where there is no number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    generation = [f"{m.name}{end}" for m in METRICS for end in ("", "_low", "_high")]
    writer.writerow([*COLUMNS, *generation, "quality", "reasons"])
    for row in table:
        values = _columns(row).values()
        quality = " ".join(f"{name}={value!r}" for name, value in row.quality.items())
        cells = ["" if value is None else value for value in values]
        writer.writerow([_inert(cell) for cell in (*cells, quality, "; ".join(row.reasons))])
    return text.getvalue().rstrip("\n")


def _inert(cell: object) -> object:
    """A cell that no spreadsheet takes for a formula: names come from whoever wrote the log."""
    is_formula = isinstance(cell, str) and cell.startswith(("=", "+", "-", "@"))
    return f"'{cell}" if is_formula else cell
