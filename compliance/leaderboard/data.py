"""Rows as data: CSV and JSON, with one flat column for each fact."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compliance.leaderboard.row import Row
from compliance.score.kinds import MINUTES
from compliance.score.trimmed import Estimate
from rules.generation import METRICS

Column = Callable[[Row], Any]


def _columns_of_score(metric: str, name: str, prefix: str) -> dict[str, Column]:
    """Return the columns of a score and of the ends of its interval."""

    def find(row: Row) -> Estimate | None:
        score = row.standing.score
        return score.estimates.get(metric) if score else None

    return {
        name: lambda row: estimate.mean if (estimate := find(row)) else None,
        f"{prefix}_low": lambda row: estimate.low if (estimate := find(row)) else None,
        f"{prefix}_high": lambda row: estimate.high if (estimate := find(row)) else None,
    }


COLUMNS: Mapping[str, Column] = {
    "submitter": lambda row: row.names.submitter,
    "system": lambda row: row.names.system,
    "division": lambda row: row.names.division,
    "benchmark": lambda row: row.names.benchmark,
    "scale": lambda row: row.names.scale,
    "nodes": lambda row: row.hardware.nodes,
    "accelerators": lambda row: row.hardware.accelerators,
    "accelerator": lambda row: row.hardware.accelerator,
    "processor": lambda row: row.hardware.processor,
    "framework": lambda row: row.hardware.framework,
    "runs": lambda row: row.runs.made,
    "required": lambda row: row.runs.required,
    "converged": lambda row: row.runs.converged,
    **_columns_of_score(MINUTES, "score_minutes", "score"),
    "provisional_minutes": lambda row: row.standing.so_far.get(MINUTES),
    "samples_to_target": lambda row: row.progress.samples,
    "epochs_to_target": lambda row: row.progress.epochs,
    "rcp_verdict": lambda row: row.reference.verdict,
    "rcp_factor": lambda row: row.reference.factor,
    "verdict": lambda row: row.standing.verdict,
    "provisional_targets": lambda row: row.provisional_targets,
    "energy_joules": lambda row: row.energy.joules if row.energy else None,
    "not_measured": lambda row: row.energy.not_measured if row.energy else "",
    "update_time_ratio": lambda row: row.progress.update_time_ratio,
    "seeds": lambda row: row.runs.seeds,
    **dict(
        column
        for metric in METRICS
        for column in _columns_of_score(metric.name, metric.name, metric.name).items()
    ),
}
"""What CSV and JSON share, column by column; None where there is no number."""


def write_json(table: Sequence[Row]) -> str:
    """Write a list with one object for each row; null where there is no number."""
    return json.dumps([describe_row(row) for row in table], indent=2)


def describe_row(row: Row) -> dict[str, Any]:
    """Return a row as plain JSON: every column, the quality, and what was found."""
    return {
        **{name: find(row) for name, find in COLUMNS.items()},
        "quality": dict(row.progress.quality),
        "reasons": list(row.reasons),
        "findings": [finding.as_json() for finding in row.findings],
    }


def write_csv(table: Sequence[Row]) -> str:
    """Write one line for each row, with all reasons in one column; empty without a number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, "quality", "reasons"])
    for row in table:
        quality = " ".join(f"{name}={value!r}" for name, value in row.progress.quality.items())
        values = [find(row) for find in COLUMNS.values()]
        cells = ["" if value is None else value for value in values]
        writer.writerow([_defuse(cell) for cell in (*cells, quality, "; ".join(row.reasons))])
    return text.getvalue().rstrip("\n")


def _defuse(cell: object) -> object:
    """Return a cell that no spreadsheet takes for a formula, since names come from logs."""
    is_formula = isinstance(cell, str) and cell.startswith(("=", "+", "-", "@"))
    return f"'{cell}" if is_formula else cell
