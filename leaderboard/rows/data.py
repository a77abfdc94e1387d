"""Rows as data: CSV and JSON, with one flat column for each fact."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from cepheid.compliance.finding import escape
from cepheid.compliance.score.kinds import MINUTES, SCORE, TRAINING
from cepheid.compliance.score.levels import Level
from cepheid.compliance.score.trimmed import Estimate
from cepheid.leaderboard.rows.cells import describe_parallelism, describe_precision
from cepheid.leaderboard.rows.entry import Entry
from cepheid.leaderboard.rows.facts import find_dates
from cepheid.rules.metrics import METRICS

Column = Callable[[Entry], Any]
FindEstimate = Callable[[Entry], Estimate | None]


def _find_digest(name: str, entry: Entry) -> str | None:
    """Return the digest that the logs state, of definition or code, if they agree."""
    said = {run.text(name) for run in entry.judged.runs}
    (digest,) = said if len(said) == 1 else (None,)
    return None if digest is None else escape(digest)


def find_days(entry: Entry) -> tuple[str | None, str | None]:
    """Find the days of the first and of the last run, None where the logs have no time."""
    return find_dates(run.started_ms for run in entry.judged.runs) or (None, None)


def _columns_of_estimate(name: str, prefix: str, find: FindEstimate) -> dict[str, Column]:
    return {
        name: lambda entry: one.mean if (one := find(entry)) else None,
        f"{prefix}_low": lambda entry: one.low if (one := find(entry)) else None,
        f"{prefix}_high": lambda entry: one.high if (one := find(entry)) else None,
    }


def _find_minutes(entry: Entry) -> Estimate | None:
    """Return the score of a training, which in rounds of MLPerf is its time to train."""
    return entry.main if entry.is_scored and entry.kind is TRAINING else None


def _find_level(entry: Entry) -> Level | None:
    """Return the level of a score, also of a provisional one; None for a time."""
    score = entry.standing.score
    return score.level if score and score.is_score else None


def _columns_of_metric(name: str) -> dict[str, Column]:
    def find(entry: Entry) -> Estimate | None:
        return entry.standing.score.estimates.get(name) if entry.standing.score else None

    return _columns_of_estimate(name, name, find)


COLUMNS: Mapping[str, Column] = {
    "submitter": lambda entry: entry.names.submitter,
    "system": lambda entry: entry.names.system,
    "division": lambda entry: entry.names.division,
    "benchmark": lambda entry: entry.names.benchmark,
    "scale": lambda entry: entry.names.scale,
    "nodes": lambda entry: entry.hardware.nodes,
    "accelerators": lambda entry: entry.hardware.accelerators,
    "accelerator": lambda entry: entry.hardware.accelerator,
    "processor": lambda entry: entry.hardware.processor,
    "framework": lambda entry: entry.hardware.framework,
    "runs": lambda entry: entry.counts.made,
    "required": lambda entry: entry.counts.required,
    "converged": lambda entry: entry.counts.converged,
    **_columns_of_estimate(SCORE, "score", _find_minutes),
    **_columns_of_estimate("time_minutes", "time", lambda entry: entry.time),
    "no_score": lambda entry: entry.standing.score.why if entry.standing.score else "",
    "charged": lambda entry: level.is_charged if (level := _find_level(entry)) else None,
    "sittings": lambda entry: (level.sittings or None) if (level := _find_level(entry)) else None,
    "resolution": lambda entry: level.resolution if (level := _find_level(entry)) else None,
    "provisional_minutes": lambda entry: entry.standing.so_far.get(MINUTES),
    "global_batch_size": lambda entry: entry.batch_size,
    "precision": describe_precision,
    "parallelism": describe_parallelism,
    "models": lambda entry: entry.standing.weak and entry.standing.weak.models,
    "models_minutes": lambda entry: entry.standing.weak and entry.standing.weak.minutes,
    "instance_scale": lambda entry: entry.standing.weak and entry.standing.weak.instance_scale,
    "samples_to_target": lambda entry: entry.progress.samples,
    "epochs_to_target": lambda entry: entry.progress.epochs,
    "rcp_verdict": lambda entry: entry.reference.verdict,
    "rcp_factor": lambda entry: entry.reference.factor,
    "rcp_p_value": lambda entry: entry.reference.p_value,
    "scaling_factor": lambda entry: entry.judged.summary.scaling if entry.is_of_mlperf else None,
    "verdict": lambda entry: entry.standing.verdict,
    "provisional_because": lambda entry: entry.standing.doubt,
    "provisional_targets": lambda entry: entry.provisional_targets,
    "energy_joules": lambda entry: entry.energy.joules if entry.energy else None,
    "not_measured": lambda entry: entry.energy.not_measured if entry.energy else "",
    "samples_per_second": lambda entry: entry.pace and entry.pace.samples_per_second,
    "mfu": lambda entry: entry.peak_share and entry.peak_share.share,
    "mfu_precision": lambda entry: entry.peak_share and entry.peak_share.peak.precision,
    "mfu_peak": lambda entry: entry.peak_share and entry.peak_share.peak.basis,
    "mfu_peak_tflops": lambda entry: entry.peak_share and entry.peak_share.peak.tflops,
    "update_time_ratio": lambda entry: entry.progress.update_time_ratio,
    "begun_runs": lambda entry: entry.begun.runs,
    "system_names": lambda entry: entry.begun.systems,
    "seeds": lambda entry: entry.counts.seeds,
    "round": lambda entry: entry.judged.judged_in.name,
    "definition_digest": partial(_find_digest, "definition_digest"),
    "code_digest": partial(_find_digest, "code_digest"),
    "first_run": lambda entry: find_days(entry)[0],
    "last_run": lambda entry: find_days(entry)[1],
    "log_mean": lambda entry: entry.level and entry.level.log_mean,
    "log_variance": lambda entry: entry.level and entry.level.variance,
    "log_degrees": lambda entry: entry.level and entry.level.degrees,
    **{
        name: column
        for metric in METRICS
        for name, column in _columns_of_metric(metric.name).items()
    },
}
"""What CSV and JSON share, column by column; None where there is no number."""


def write_json(table: Sequence[Entry]) -> str:
    """Write a list with one object for each entry; null where there is no number."""
    return json.dumps([describe_entry(entry) for entry in table], indent=2)


def describe_entry(entry: Entry) -> dict[str, Any]:
    """Return a entry as plain JSON: every column, the quality, and what was found."""
    return {
        **{name: find(entry) for name, find in COLUMNS.items()},
        "quality": dict(entry.progress.quality),
        "codes": _list_codes(entry),
        "reasons": list(entry.reasons),
        "findings": [finding.as_json() for finding in entry.findings],
    }


def describe_level(level: Level | None) -> dict[str, Any] | None:
    """Describe what intervals and comparisons of a result are computed from, also in a browser."""
    if level is None:
        return None
    own = level.own
    return {
        "basis": level.basis,
        "log_mean": level.log_mean,
        "variance": level.variance,
        "degrees": level.degrees,
        "n": level.runs,
        "sittings": level.sittings,
        "charged": level.is_charged,
        "points": [asdict(one) for one in level.loadings],
        "own": {"log_mean": own.log_mean, "variance": own.variance} if own else None,
    }


def write_csv(table: Sequence[Entry]) -> str:
    """Write one line for each entry; empty without a number.

    Each metric has a column of its own, ``quality_<metric>``. All reasons stand in one column.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    metrics = sorted({name for entry in table for name in entry.progress.quality})
    writer.writerow([*COLUMNS, *(f"quality_{name}" for name in metrics), "codes", "reasons"])
    for entry in table:
        values = [find(entry) for find in COLUMNS.values()]
        values += [entry.progress.quality.get(name) for name in metrics]
        values += [" ".join(_list_codes(entry)), "; ".join(entry.reasons)]
        writer.writerow([_defuse("" if value is None else value) for value in values])
    return text.getvalue().rstrip("\n")


def _list_codes(entry: Entry) -> list[str]:
    return sorted({finding.code for finding in entry.findings if finding.severity != "note"})


def _defuse(cell: object) -> object:
    """Return a cell that no spreadsheet takes for a formula, since names come from logs."""
    is_formula = isinstance(cell, str) and cell.startswith(("=", "+", "-", "@"))
    return f"'{cell}" if is_formula else cell
