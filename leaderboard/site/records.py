"""The index of a site, ``results.json``: benchmarks, results, runs, aggregates; numbers finite.

Each benchmark, aggregate and result stands on a line of its own, so that tools for text can compare
two indices and a program can read a large one in parts. ``cepheid.leaderboard.rows.index``
reads it.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cepheid.compliance.read.summary import Point, Scalar
from cepheid.compliance.score.comparison import Rank
from cepheid.compliance.score.kinds import SCORE, TRAINING
from cepheid.compliance.score.levels import Level
from cepheid.compliance.score.trimmed import two_sided_quantile
from cepheid.leaderboard.plots.aggregate import compute_aggregate
from cepheid.leaderboard.rows import index
from cepheid.leaderboard.rows.data import describe_entry, describe_level
from cepheid.leaderboard.rows.entry import Entry, Run, group_entries
from cepheid.leaderboard.rows.runs import format_time
from cepheid.leaderboard.rows.tables import rank_rows
from cepheid.leaderboard.site.view import Site
from cepheid.rules.definition import Definition

POINTS_MAX = 300  # of the quality curve of one run
QUANTILES = 400  # steps of one over the degrees of freedom, from 0 to 1


def write_index(site: Site) -> str:
    """Write every result with its page, its runs and findings, valid against the schema."""
    head = {
        "schema": index.SCHEMA_FILE,
        "version": index.VERSION,
        "round": site.round,
        "commit": site.commit or None,
    }
    lists = {
        "benchmarks": describe_benchmarks(site),
        "aggregates": describe_aggregates(site),
        "results": describe_results(site),
    }
    parts = [f'"{name}": {_encode(value)}' for name, value in head.items()]
    parts += [f'"{name}": {_write_list(items)}' for name, items in lists.items()]
    return "{\n" + ",\n".join(parts) + "\n}"


def _write_list(items: Iterable[Mapping[str, Any]]) -> str:
    lines = ",\n".join(map(_encode, items))
    return f"[\n{lines}\n]" if lines else "[]"


def _encode(value: object) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def describe_benchmarks(site: Site) -> Iterator[dict[str, Any]]:
    """Describe each benchmark with results, at each scale: its targets and what ranks results."""
    seen = set()
    for entry in site.entries:
        key = entry.names.benchmark, entry.names.scale
        if entry.is_known and key not in seen:
            seen.add(key)
            yield _describe_benchmark(entry, entry.definition)


def _describe_benchmark(entry: Entry, definition: Definition | None) -> dict[str, Any]:
    judged_by = definition or entry.judged.benchmark
    assert judged_by is not None
    runs, units = judged_by.runs, definition.units if definition else {}
    return {
        "benchmark": entry.names.benchmark,
        "scale": entry.names.scale,
        "title": definition.title if definition else "",
        "summary": definition.summary if definition else "",
        "page": entry.benchmark_page,
        "definition_digest": definition.digest if definition else None,
        "provisional_targets": entry.provisional_targets,
        "score": {
            "metric": _name_score(entry),
            "unit": entry.kind.unit_name,
            "better": "lower" if entry.kind.better.startswith("less") else "higher",
        },
        "runs": {
            "required": runs.required,
            "drop_fastest": runs.drop_fastest,
            "drop_slowest": runs.drop_slowest,
        },
        "targets": [
            {
                "metric": target.metric,
                "better": target.better,
                "target": target.target,
                "unit": units.get(target.metric, ""),
                "meaning": definition.meanings.get(target.metric, "") if definition else "",
            }
            for target in (definition.quality if definition else ())
        ],
        "reported": list(definition.reported) if definition else [],
    }


def _name_score(entry: Entry) -> str:
    """Name what ranks results: a score of our own, or the time that is MLPerf's."""
    is_own = entry.kind is TRAINING and not entry.round_kind.has_verdicts
    return SCORE if is_own else entry.kind.ranked_by


def describe_aggregates(site: Site) -> Iterator[dict[str, Any]]:
    """Describe the aggregate of each table, the reference with a ratio of 1."""
    for tab in site.tabs:
        aggregate = compute_aggregate(tab, site.reference)
        systems: list[dict[str, Any]] = [
            {"system": system, "twin": twin, "ratio": one.value, "low": one.low, "high": one.high}
            for (system, twin), one in aggregate.ratios.items()
        ]
        if not aggregate.why_not:
            one = {"system": aggregate.reference, "twin": 1, "ratio": 1.0, "low": 1.0, "high": 1.0}
            systems = [one, *(other for other in systems if other["system"] != aggregate.reference)]
        yield {
            "scale": tab.scale,
            "division": tab.division,
            "page": tab.page,
            "reference": aggregate.reference,
            "benchmarks": list(aggregate.benchmarks),
            "why_not": aggregate.why_not,
            "systems": sorted(systems, key=lambda one: (-one["ratio"], one["system"])),
        }


def describe_results(site: Site) -> Iterator[dict[str, Any]]:
    """Describe each result with its rank, its runs and its findings."""
    ranks = _find_ranks(site.entries)
    return (_describe_result(site, entry, ranks[entry.id]) for entry in site.entries)


def _find_ranks(entries: Sequence[Entry]) -> dict[str, Rank | None]:
    groups = group_entries(entries, lambda entry: entry.group).values()
    return {entry.id: rank for members in groups for entry, rank in rank_rows(members)}


def _describe_result(site: Site, entry: Entry, rank: Rank | None) -> dict[str, Any]:
    return {
        "id": entry.id,
        "page": entry.page,
        "rank": rank.value if rank else None,
        "rank_interval": [rank.best, rank.worst] if rank else None,
        "availability": entry.availability,
        "batch_size": entry.batch_size,
        **_drop_infinite(describe_entry(entry)),
        "quality": _keep_finite(entry.progress.quality),
        "comparison": describe_level(entry.level),
        "since_last_round": site.since[entry.id].as_json() if entry.id in site.since else None,
        "hyperparameters": collect_hyperparameters(entry.runs),
        "run_logs": [_describe_run(site, run) for run in entry.runs],
    }


def collect_hyperparameters(runs: Sequence[Run]) -> dict[str, Scalar]:
    """Collect the hyperparameters that all runs of a result share; None where they differ."""
    shared: dict[str, Scalar] = {}
    for name in dict.fromkeys(name for run in runs for name in run.summary.hyperparameters):
        values = {repr(run.summary.hyperparameters.get(name)): run for run in runs}
        same = next(iter(values.values())) if len(values) == 1 else None
        shared[name] = same.summary.hyperparameters.get(name) if same else None
    return shared


def _describe_run(site: Site, run: Run) -> dict[str, Any]:
    summary = run.summary
    return {
        "run": summary.number,
        "log": site.link("results.json", summary.path) or None,
        "status": summary.ending,
        "started": format_time(summary.started_ms),
        "minutes": summary.minutes if math.isfinite(summary.minutes) else None,
        "counts": run.counts,
        "samples_to_target": summary.samples,
        "crossing": summary.crossing,
        "seed": summary.seed,
        "energy_joules": summary.joules if _is_finite(summary.joules) else None,
        **({"generation": _keep_finite(summary.generation)} if summary.generation else {}),
        "curve": _describe_curve(run.course.curve),
    }


def _describe_curve(points: Sequence[Point]) -> dict[str, Any]:
    """Describe the evaluations of a run column by column, so that a program reads a table."""
    kept = points if len(points) <= POINTS_MAX else [*points[: POINTS_MAX - 1], points[-1]]
    names = list(dict.fromkeys(name for point in kept for name in point.metrics))[:50]
    return {
        "seconds": [_round(point.seconds) for point in kept],
        "samples": [point.samples for point in kept],
        "metrics": {
            name: [
                value if _is_finite(value := point.metrics.get(name)) else None for point in kept
            ]
            for name in names
        },
        "left_out": len(points) - len(kept),
    }


def _round(seconds: float) -> float | None:
    return round(seconds, 3) if math.isfinite(seconds) else None


def _drop_infinite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Replace infinite numbers, which JSON does not have, by None."""
    return {key: value if _is_finite(value) else None for key, value in values.items()}


def _keep_finite(values: Mapping[str, float]) -> dict[str, float]:
    return {key: value for key, value in values.items() if _is_finite(value)}


def _is_finite(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def list_quantiles() -> list[float]:
    """List Student's quantiles by one over the degrees of freedom, for ``ratios.js``."""
    steps = (step / QUANTILES for step in range(QUANTILES + 1))
    return [round(two_sided_quantile(1 / max(step, 1e-9)), 6) for step in steps]


def describe_for_ratios(entry: Entry) -> dict[str, Any]:
    """Describe what ``ratios.js`` compares a result by, as short as it can be."""
    level = entry.level
    assert level is not None
    own = _shorten_level(level.own) if level.own else None
    return {
        **_shorten_level(level), "runs": level.runs, "own": own, "charged": level.is_charged
    }  # fmt: skip


def _shorten_level(level: Level) -> dict[str, Any]:
    def shorten(value: float | None) -> float | None:
        return None if value is None else float(f"{value:.10g}")

    return {
        "basis": level.basis,
        "mean": shorten(level.log_mean),
        "variance": shorten(level.variance),
        "degrees": level.degrees,
        "points": [
            [one.point, shorten(one.share), shorten(one.variance), one.degrees]
            for one in level.loadings
        ],
    }


def describe_levels(entries: Iterable[Entry]) -> dict[str, Any]:
    """Describe what a page needs to compare its results in a browser."""
    results = {entry.id: describe_for_ratios(entry) for entry in entries}
    return {"student": list_quantiles(), "results": results}
