"""The index of a site, ``results.json``: benchmarks, results, runs, aggregates; numbers finite.

Each benchmark, aggregate and result stands on a line of its own, so that tools for text can compare
two indices and a program can read a large one in parts. ``cepheid.leaderboard.rows.index``
reads it.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from cepheid.compliance.read.summary import Scalar
from cepheid.compliance.score.comparison import Rank
from cepheid.compliance.score.kinds import SCORE, TRAINING
from cepheid.compliance.score.trimmed import two_sided_quantile
from cepheid.leaderboard.plots.ranking import compute_aggregate
from cepheid.leaderboard.rows import index
from cepheid.leaderboard.rows.cells import rank_rows
from cepheid.leaderboard.rows.data import describe_entry, describe_level
from cepheid.leaderboard.rows.entry import Entry, Run, group_entries
from cepheid.leaderboard.rows.facts import format_time
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
    parts = ["{\n", ",\n".join(f'"{name}": {_encode(value)}' for name, value in head.items())]
    for name, describe in (
        ("benchmarks", describe_benchmarks),
        ("aggregates", describe_aggregates),
        ("results", describe_results),
    ):
        parts.append(f',\n"{name}": [')
        before = len(parts)
        for one in describe(site):
            parts += [",\n" if len(parts) > before else "\n", _encode(one)]
        parts.append("\n]" if len(parts) > before else "]")
    return "".join([*parts, "\n}\n"])  # joined once: it may be the largest file of the site


def _encode(value: object) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def describe_benchmarks(site: Site) -> Iterator[dict[str, Any]]:
    """Describe each benchmark with results, at each scale: its targets and what ranks results."""
    known = (entry for entry in site.entries if entry.held)
    for entry, *_ in group_entries(known, lambda e: (e.names.benchmark, e.names.scale)).values():
        assert entry.held is not None
        definition, is_own = entry.definition, entry.kind is TRAINING and not entry.is_of_mlperf
        yield {
            "benchmark": entry.names.benchmark,
            "scale": entry.names.scale,
            "title": definition.title if definition else "",
            "summary": definition.summary if definition else "",
            "page": entry.benchmark_page,
            "definition_digest": definition.digest if definition else None,
            "provisional_targets": entry.provisional_targets,
            "score": {  # what ranks results: a score of our own, or the time that is MLPerf's
                "metric": SCORE if is_own else entry.kind.ranked_by,
                "unit": entry.kind.unit_name,
                "better": "lower" if entry.kind.better.startswith("less") else "higher",
            },
            "runs": {
                "required": entry.held.required,
                "drop_fastest": entry.held.drop_fastest,
                "drop_slowest": entry.held.drop_slowest,
            },
            "targets": describe_targets(definition),
            "reported": list(definition.reported) if definition else [],
        }


def describe_targets(definition: Definition | None) -> list[dict[str, Any]]:
    """Describe what results must reach; nothing for a benchmark of MLPerf."""
    return [
        {
            "metric": target.metric,
            "better": target.better,
            "target": target.target,
            "unit": definition.units.get(target.metric, ""),
            "meaning": definition.meanings.get(target.metric, ""),
        }
        for definition in filter(None, [definition])
        for target in definition.quality
    ]


def describe_aggregates(site: Site) -> Iterator[dict[str, Any]]:
    """Describe the aggregate of each table, the reference with a ratio of 1."""
    for tab in site.tabs:
        aggregate = compute_aggregate(tab.entries, site.reference)
        systems: list[dict[str, Any]] = [
            {"system": system, "twin": twin, "ratio": one.value, "low": one.low, "high": one.high}
            for (system, twin), one in aggregate.ratios.items()
        ]
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
    groups = group_entries(site.entries, lambda entry: entry.group).values()
    ranks = {entry.id: rank for members in groups for entry, rank in rank_rows(members)}
    return (_describe_result(site, entry, ranks[entry.id]) for entry in site.entries)


def _describe_result(site: Site, entry: Entry, rank: Rank | None) -> dict[str, Any]:
    known = describe_entry(entry)
    return {
        "id": entry.id,
        "page": entry.page,
        "rank": rank.value if rank else None,
        "rank_interval": [rank.best, rank.worst] if rank else None,
        "availability": entry.availability,
        "batch_size": entry.batch_size,
        **{key: value if _is_finite(value) else None for key, value in known.items()},
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
        values = [run.summary.hyperparameters.get(name) for run in runs]
        shared[name] = values[0] if len(set(map(repr, values))) == 1 else None
    return shared


def _describe_run(site: Site, run: Run) -> dict[str, Any]:
    summary = run.summary
    names = list(dict.fromkeys(name for point in run.course.curve for name in point.metrics))[:50]
    return {
        "run": summary.number,
        "log": site.link(index.FILE, summary.path) or None,
        "status": summary.ending,
        "started": format_time(summary.started_ms),
        "minutes": summary.minutes if math.isfinite(summary.minutes) else None,
        "counts": run.counts,
        "samples_to_target": summary.samples,
        "crossing": summary.crossing,
        "seed": summary.seed,
        "energy_joules": summary.joules if _is_finite(summary.joules) else None,
        **({"generation": _keep_finite(summary.generation)} if summary.generation else {}),
        "curve": describe_curve(run, names),
    }


def describe_curve(run: Run, metrics: Iterable[str], every: int = 1) -> dict[str, Any]:
    """Describe the evaluations of a run column by column, so that a program reads a table."""
    points = run.course.curve
    kept = points if len(points) <= POINTS_MAX else [*points[: POINTS_MAX - 1], points[-1]]
    kept = kept[::every]
    return {
        "seconds": [round(p.seconds, 3) if math.isfinite(p.seconds) else None for p in kept],
        "samples": [point.samples for point in kept],
        "metrics": {
            name: [value if _is_finite(value := p.metrics.get(name)) else None for p in kept]
            for name in metrics
        },
        "left_out": len(points) - len(kept),
    }


def _keep_finite(values: Mapping[str, float]) -> dict[str, float]:
    return {key: value for key, value in values.items() if _is_finite(value)}


def _is_finite(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def list_quantiles() -> list[float]:
    """List Student's quantiles by one over the degrees of freedom, for ``ratios.js``."""
    steps = (step / QUANTILES for step in range(QUANTILES + 1))
    return [round(two_sided_quantile(1 / max(step, 1e-9)), 6) for step in steps]
