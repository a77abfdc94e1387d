"""The round: for each scale and division a table with a row for each system, and every result."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cepheid.compliance.score.comparison import Ratio
from cepheid.compliance.score.kinds import TRAINING
from cepheid.leaderboard.pages.benchmark_page import find_device_minutes
from cepheid.leaderboard.plots.ranking import (
    Key,
    compute_aggregate,
    get_key,
    make_ranking,
    plot_profiles,
)
from cepheid.leaderboard.rows.cells import (
    format_ratio_interval,
    format_value,
    name_unit,
    suggest_command,
)
from cepheid.leaderboard.rows.entry import Entry, group_entries
from cepheid.leaderboard.site.history import Line
from cepheid.leaderboard.site.view import Site, Tab, render


def make_pages(site: Site) -> Iterator[tuple[str, str]]:
    """Make a page for every tab, and that with the most to see once more as the start page."""
    first = max(site.tabs, key=lambda tab: sum(e.is_ranked for e in tab.entries), default=None)
    for tab in site.tabs:
        text = _render_page(site, tab)
        yield tab.page, text
        if tab is first:
            yield "index.html", text
    if not site.tabs:
        yield "index.html", render(site, "empty.html", "index.html")


def _render_page(site: Site, tab: Tab) -> str:
    known = [entry for entry in tab.entries if entry.is_known]
    ranked = [entry for entry in known if entry.is_ranked]
    members = group_entries(known, lambda entry: entry.names.benchmark)
    made = [_make_column(site, entries) for _, entries in sorted(members.items())]
    made.sort(key=lambda column: not column["commands"])  # what a reader has just run is first
    columns = [column for column in made if column["ranking"]]
    scored = {entry.names.benchmark for entry in ranked}
    shown = [column for column in columns if column["name"] in scored]
    total = compute_aggregate(tab.entries, site.reference)
    return render(
        site,
        "round.html",
        tab.page,
        tab=tab,
        columns=columns,
        without_score=[column for column in made if not column["ranking"]],
        scored=shown,
        ranked=ranked,
        rows=_make_rows(ranked, [column["name"] for column in shown], total.ratios),
        aggregate=total,
        profiles=plot_profiles(tab.entries),
        unranked=[entry for entry in tab.entries if not entry.is_ranked],
        has_own_scores=any(not entry.is_of_mlperf for entry in known),
        twins=sum(entry.twin > 1 for entry in tab.entries),
        runs=sum(len(entry.runs) for entry in tab.entries),
    )


def _make_column(site: Site, entries: Sequence[Entry]) -> dict[str, Any]:
    """Make what the page shows of a benchmark.

    ``facts`` are sentences, ``commands`` make scores of results that have too few runs, and
    ``spark`` are the points of a small line: the best result over the rounds.
    """
    row, line = entries[0], site.bests.get(entries[0].group)
    return {
        "row": row,
        "name": row.names.benchmark,
        "title": row.definition.title if row.definition else "",
        "summary": row.definition.summary if row.definition else "",
        "ranking": make_ranking(entries, site.colour(entries)),
        "facts": " ".join(_list_facts(site, entries, line)),
        "commands": list(filter(None, map(suggest_command, entries))),
        "spark": _draw_spark(line) if line else "",
    }


def _list_facts(site: Site, entries: Sequence[Entry], line: Line | None) -> Iterator[str]:
    """List in sentences what a ranking by time does not show."""
    known = {
        e.id: (minutes, e) for e in entries if e.is_ranked and (minutes := find_device_minutes(e))
    }
    if len({entry.devices for _, entry in known.values()}) > 1:
        minutes, least = known[min(known, key=lambda name: known[name][0])]
        unit, time = TRAINING.choose_unit(minutes), format_value(TRAINING, minutes / least.devices)
        cost = f"{unit.format(minutes)} device-{name_unit(unit)} ({time} on {least.hardware})"
        yield f"Least device-time, and so cost: {least.name}, {cost}."
    if line and line.steps[-1].round == site.rounds[-1].label:
        if line.steps[-1].change:
            yield f"First place since the last round: {line.steps[-1].change}."
        elif len(line.steps) == 1:
            yield "New in this round."


def _draw_spark(line: Line) -> str:
    """Return the points of the best results of the rounds that can be compared."""
    steps = [step for step in line.steps if step.part == line.steps[-1].part]
    values = [math.log(step.value) for step in steps if step.value > 0]
    if len(values) < 2:
        return ""
    low, width = min(values), (max(values) - min(values)) or 1.0
    return " ".join(
        f"{2 + 56 * place / (len(values) - 1):.1f},{14 - 12 * (value - low) / width:.1f}"
        for place, value in enumerate(values)
    )


def _make_rows(
    entries: Sequence[Entry], benchmarks: Sequence[str], ratios: Mapping[Key, Ratio]
) -> list[dict[str, Any]]:
    """Make a row for each system: by aggregate, then those with most benchmarks, then by cost.

    ``entries`` all have a score. A cell is None where a system has none.
    """
    systems: dict[Key, dict[str, Entry]] = {}
    for entry in entries:
        systems.setdefault(get_key(entry), {})[entry.names.benchmark] = entry

    def place(key: Key) -> tuple[float, int, float, Key]:
        cells = systems[key].values()
        speed = ratios[key].value if key in ratios else 0.0
        return -speed, -len(cells), min(entry.standing.cost for entry in cells), key

    return [
        {
            "cells": [systems[key].get(name) for name in benchmarks],
            "first": next(systems[key][name] for name in benchmarks if name in systems[key]),
            "ratio": ratios[key].value if key in ratios else "",
            "ratio_text": format_ratio_interval(ratios[key]) if key in ratios else "",
        }
        for key in sorted(systems, key=place)
    ]
