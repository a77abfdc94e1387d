"""Compare any results: the page holds the data, and ``site.js`` compares them.

It computes what ``compliance.score.comparison`` computes, with the same quantiles; a test compares
the two.
"""

from collections.abc import Iterator
from typing import Any

from compliance.score.comparison import DEGREES_MAX, find_quantile
from compliance.site.entry import Entry
from compliance.site.view import Site, make_score_cell, name_entry, render

PAGE = "compare.html"


def make_pages(site: Site) -> Iterator[tuple[str, str]]:
    """Make one page; its address names the results to compare, after #."""
    scored = [entry for entry in site.entries if entry.level is not None]
    data = {
        "student": [round(find_quantile(degrees), 6) for degrees in range(1, DEGREES_MAX + 1)],
        "results": [_describe_result(entry) for entry in scored],
    }
    yield PAGE, render(site, "compare.html", PAGE, data=data, count=len(scored))


def _describe_result(entry: Entry) -> dict[str, Any]:
    assert entry.level is not None
    row, level = entry.row, entry.level
    cell = make_score_cell(entry, 1.0)
    return {
        "id": entry.id,
        "name": name_entry(entry),
        "group": ", ".join(filter(None, (row.names.benchmark, row.names.scale))),
        "division": row.names.division,
        "hardware": str(row.hardware),
        "machine": ", ".join(
            filter(None, (row.names.submitter, row.hardware.accelerator or row.hardware.processor))
        ),
        "framework": row.hardware.framework,
        "batch": entry.batch_size,
        "score": cell.text,
        "mean": level.log_mean,
        "variance": level.variance,
        "degrees": level.degrees,
        "runs": level.runs,
    }
