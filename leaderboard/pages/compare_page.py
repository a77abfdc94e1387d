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
from cepheid.leaderboard.pages.lists import list_facts
from cepheid.leaderboard.plots.plot import get_shape
from cepheid.leaderboard.rows.entry import Entry, Run
from cepheid.leaderboard.site.records import (
    collect_hyperparameters,
    describe_for_ratios,
    list_quantiles,
)
from cepheid.leaderboard.site.view import Site, make_score_cell, render

PAGE = "compare.html"
POINTS_MAX = 100  # of the curve of a run
TEXT_MAX = 200  # characters of a fact


def make_pages(site: Site) -> Iterator[tuple[str, str]]:
    """Make the page, whose address names the results to compare after #."""
    scored = [entry for entry in site.entries if entry.level is not None]
    data = {
        "student": list_quantiles(),
        "results": [_describe_result(site, entry) for entry in scored],
    }
    yield PAGE, render(site, "compare.html", PAGE, data=data, count=len(scored))


def make_details(site: Site, entries: Sequence[Entry]) -> Iterator[tuple[str, str]]:
    """Make the scripts that hold the details of those of some results that have a score."""
    for entry in (entry for entry in entries if entry.level is not None):
        content = json.dumps(_describe_details(entry), separators=(",", ":"))
        yield f"results/{entry.id}.js", f"addDetails({json.dumps(entry.id)},{content});\n"


def _describe_result(site: Site, entry: Entry) -> dict[str, Any]:
    hardware, colour = entry.hardware, site.devices[entry.hardware.device]
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
        "colour": colour,
        "shape": get_shape(colour),
        **describe_for_ratios(entry),
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
