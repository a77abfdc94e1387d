"""Rows as data: CSV and JSON, with one flat column for each fact."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cepheid.compliance.finding import escape
from cepheid.compliance.score.kinds import MINUTES
from cepheid.compliance.score.trimmed import Estimate
from cepheid.leaderboard.rows.dates import find_dates
from cepheid.leaderboard.rows.row import Row
from cepheid.rules.generation import METRICS

Column = Callable[[Row], Any]


def _find_code(row: Row) -> str | None:
    """Return what the logs say of the code that made the result, if they agree."""
    said = {run.text("code_digest") for run in row.judged.runs}
    (code,) = said if len(said) == 1 else (None,)
    return None if code is None else escape(code)


def _find_dates(row: Row) -> tuple[str | None, str | None]:
    return find_dates(run.started_ms for run in row.judged.runs) or (None, None)


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
    "samples_per_second": lambda row: row.pace and row.pace.samples_per_second,
    "mfu": lambda row: row.peak_share and row.peak_share.share,
    "mfu_precision": lambda row: row.peak_share and row.peak_share.peak.precision,
    "mfu_peak": lambda row: row.peak_share and row.peak_share.peak.basis,
    "mfu_peak_tflops": lambda row: row.peak_share and row.peak_share.peak.tflops,
    "update_time_ratio": lambda row: row.progress.update_time_ratio,
    "seeds": lambda row: row.runs.seeds,
    "round": lambda row: row.judged.judged_in.name,
    "definition_digest": lambda row: row.judged.definition and row.judged.definition.digest,
    "code_digest": lambda row: _find_code(row),
    "first_run": lambda row: _find_dates(row)[0],
    "last_run": lambda row: _find_dates(row)[1],
    "log_mean": lambda row: row.level and row.level.log_mean,
    "log_variance": lambda row: row.level and row.level.variance,
    "log_degrees": lambda row: row.level and row.level.degrees,
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
        "codes": _list_codes(row),
        "reasons": list(row.reasons),
        "findings": [finding.as_json() for finding in row.findings],
    }


def write_csv(table: Sequence[Row]) -> str:
    """Write one line for each row; empty without a number.

    Each metric has a column of its own, ``quality_<metric>``. All reasons stand in one column.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    metrics = sorted({name for row in table for name in row.progress.quality})
    writer.writerow([*COLUMNS, *(f"quality_{name}" for name in metrics), "codes", "reasons"])
    for row in table:
        values = [find(row) for find in COLUMNS.values()]
        values += [row.progress.quality.get(name) for name in metrics]
        values += [" ".join(_list_codes(row)), "; ".join(row.reasons)]
        writer.writerow([_defuse("" if value is None else value) for value in values])
    return text.getvalue().rstrip("\n")


def _list_codes(row: Row) -> list[str]:
    """List the codes of the errors and warnings, each once."""
    return sorted({found.code for found in row.findings if found.severity != "note"})


def _defuse(cell: object) -> object:
    """Return a cell that no spreadsheet takes for a formula, since names come from logs."""
    is_formula = isinstance(cell, str) and cell.startswith(("=", "+", "-", "@"))
    return f"'{cell}" if is_formula else cell
