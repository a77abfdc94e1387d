"""Compare any results: the page holds the levels, and ``compare.js`` compares them.

It computes what ``cepheid.compliance.score.comparison`` computes, with the same quantiles; a test
compares the two. What only chosen results need, descriptions and curves, is in a script beside the
page of each result: a page that was opened from a disk may read scripts and nothing else.
"""

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from cepheid.compliance.finding import escape
from cepheid.compliance.score.levels import Level
from cepheid.compliance.score.trimmed import two_sided_quantile
from cepheid.leaderboard.pages.lists import list_facts
from cepheid.leaderboard.rows.entry import Entry, Run
from cepheid.leaderboard.site.records import collect_hyperparameters
from cepheid.leaderboard.site.view import Site, make_score_cell, render

PAGE = "compare.html"
POINTS_MAX = 100  # of the curve of a run
TEXT_MAX = 200  # characters of a fact
QUANTILES = 400  # steps of one over the degrees of freedom, from 0 to 1


def make_pages(site: Site) -> Iterator[tuple[str, str]]:
    """Make the page, whose address names the results to compare after #."""
    scored = [entry for entry in site.entries if entry.level is not None]
    data = {
        "student": [
            round(two_sided_quantile(QUANTILES / max(step, 1e-6)), 6)
            for step in range(QUANTILES + 1)
        ],
        "results": [_describe_result(entry) for entry in scored],
    }
    yield PAGE, render(site, "compare.html", PAGE, data=data, count=len(scored))


def make_details(site: Site, entries: Sequence[Entry]) -> Iterator[tuple[str, str]]:
    """Make the scripts that hold the details of those of some results that have a score."""
    for entry in (entry for entry in entries if entry.level is not None):
        content = json.dumps(_describe_details(entry), separators=(",", ":"))
        yield f"results/{entry.id}.js", f"addDetails({json.dumps(entry.id)},{content});\n"


def _describe_result(entry: Entry) -> dict[str, Any]:
    assert entry.level is not None
    level, hardware = entry.level, entry.hardware
    cell = make_score_cell(entry, 1.0)
    return {
        "id": entry.id,
        "name": entry.name,
        "group": ", ".join(filter(None, (entry.names.benchmark, entry.names.scale))),
        "division": entry.names.division,
        "hardware": str(hardware),
        "devices": entry.devices,
        "machine": ", ".join(
            filter(None, (entry.names.submitter, hardware.accelerator or hardware.processor))
        ),
        "framework": hardware.framework,
        "batch": entry.batch_size,
        "score": cell.text if entry.is_scored else f"{cell.text} (time, no score)",
        **_describe_level(level),
        "runs": level.runs,
        "own": _describe_level(level.own) if level.own else None,
        "charged": level.is_charged,
    }


def _describe_level(level: Level) -> dict[str, Any]:
    return {
        "basis": level.basis,
        "mean": level.log_mean,
        "variance": level.variance,
        "degrees": level.degrees,
        "points": [[one.point, one.share, one.variance, one.degrees] for one in level.loadings],
    }


def _describe_details(entry: Entry) -> dict[str, Any]:
    targets = entry.definition.quality if entry.definition else ()
    names = [target.metric for target in targets]
    return {
        "facts": {name: text[:TEXT_MAX] for name, text in list_facts(entry.judged.system)},
        "hyperparameters": {
            name: "" if value is None else escape(str(value))
            for name, value in collect_hyperparameters(entry.runs).items()
        },
        "targets": [
            {"metric": target.metric, "better": target.better, "target": target.target}
            for target in targets
        ],
        "runs": [_describe_curve(run, names) for run in entry.runs],
    }


def _describe_curve(run: Run, metrics: list[str]) -> list[dict[str, float]]:
    """Describe the evaluations of a run, at most ``POINTS_MAX`` of them."""
    curve = run.course.curve
    return [
        {"minutes": round(point.seconds / 60, 5)}
        | {
            name: value
            for name in metrics
            if math.isfinite(value := point.metrics.get(name, math.nan))
        }
        for point in curve[:: max(1, math.ceil(len(curve) / POINTS_MAX))]
        if math.isfinite(point.seconds)
    ]
