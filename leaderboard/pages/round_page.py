"""The round: for each scale and division a table with a row for each system, and every result."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cepheid.compliance.score.comparison import Ratio
from cepheid.compliance.score.kinds import GENERATION, TRAINING
from cepheid.leaderboard.pages.benchmark_page import measure_devices
from cepheid.leaderboard.plots.aggregate import (
    Aggregate,
    compute_aggregate,
    format_ratio_interval,
    get_key,
    plot_profiles,
)
from cepheid.leaderboard.plots.ranking import Ranking, make_ranking
from cepheid.leaderboard.rows.cells import format_value, suggest_command
from cepheid.leaderboard.rows.entry import Entry, Tab, group_entries
from cepheid.leaderboard.site.history import trace_bests
from cepheid.leaderboard.site.view import ScoreCell, Site, make_score_cell, render


@dataclass(frozen=True)
class Column:
    """A benchmark: its page, what runs, what is good, and its ranking.

    ``facts`` are sentences: what the least device-time is, and what changed since the last round.
    ``commands`` make scores of results that have too few runs. ``spark`` are the points of a small
    line: the best result over the rounds that can be compared.
    """

    name: str
    title: str
    page: str
    summary: str
    has_most_first: bool
    better: str
    provisional: str
    ranking: Ranking | None
    facts: tuple[str, ...]
    commands: tuple[str, ...]
    spark: str


@dataclass(frozen=True)
class SystemRow:
    """A system with a cell for each benchmark, None where it has no result."""

    first: Entry
    name: str
    has_levels: bool
    cells: tuple[ScoreCell | None, ...]
    ratio: Ratio | None
    ratio_text: str


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
    members = group_entries(known, lambda entry: entry.names.benchmark)
    ranked = [entry for entry in known if entry.is_ranked]
    made = [_make_column(site, entries) for _, entries in sorted(members.items())]
    made.sort(key=lambda column: not column.commands)  # what a reader has just run is first
    columns = [column for column in made if column.ranking]
    scored = {entry.names.benchmark for entry in ranked}
    total = compute_aggregate(tab, site.reference)
    return render(
        site,
        "round.html",
        tab.page,
        tab=tab,
        columns=columns,
        without_score=[column for column in made if not column.ranking],
        scored=scored,
        ranked=ranked,
        rows=list(_make_rows(ranked, [c.name for c in columns if c.name in scored], total)),
        aggregate=total,
        profiles=plot_profiles(tab),
        unranked=[make_score_cell(e, 1.0) for e in tab.entries if not e.is_ranked],
        provisional=[column for column in made if column.provisional],
        has_own_scores=any(not entry.round_kind.has_verdicts for entry in known),
        twins=[entry for entry in tab.entries if entry.twin > 1],
        runs=sum(len(entry.runs) for entry in tab.entries),
    )


def _make_column(site: Site, entries: Sequence[Entry]) -> Column:
    row, definition = entries[0], entries[0].definition
    return Column(
        name=row.names.benchmark,
        title=definition.title if definition else "",
        page=entries[0].benchmark_page,
        summary=definition.summary if definition else "",
        has_most_first=row.kind is GENERATION,
        better=row.kind.better,
        provisional=row.provisional_targets,
        ranking=make_ranking(entries, site.colour(entries)),
        facts=tuple(_list_facts(site, entries)),
        commands=tuple(filter(None, map(suggest_command, entries))),
        spark=_draw_spark(site, entries[0].group),
    )


def _list_facts(site: Site, entries: Sequence[Entry]) -> Iterator[str]:
    """List in sentences what a ranking by time does not show."""
    lines = [line for line in measure_devices(entries) if line.entry.is_ranked]
    known = [line for line in lines if line.device_minutes is not None]
    if len({line.entry.devices for line in known}) > 1:
        least = min(known, key=lambda line: line.device_minutes or 0.0)
        minutes = format_value(TRAINING, least.device_minutes or 0.0)
        yield f"Least device-time, and so cost: {least.name}, {minutes} × {least.entry.hardware}."
    for line in trace_bests(site.rounds):
        step = line.steps[-1]
        if line.group == entries[0].group and step.round == site.rounds[-1].label:
            if step.change:
                yield f"First place since the last round: {step.change}."
            elif len(line.steps) == 1:
                yield "New in this round."


def _draw_spark(site: Site, group: tuple[str, str, str]) -> str:
    line = next((one for one in trace_bests(site.rounds) if one.group == group), None)
    steps = [step for step in line.steps if step.part == line.steps[-1].part] if line else []
    values = [math.log(step.value) for step in steps if step.value > 0]
    if len(values) < 2:
        return ""
    low, width = min(values), (max(values) - min(values)) or 1.0
    return " ".join(
        f"{2 + 56 * place / (len(values) - 1):.1f},{14 - 12 * (value - low) / width:.1f}"
        for place, value in enumerate(values)
    )


def _make_rows(
    entries: Sequence[Entry], benchmarks: Sequence[str], total: Aggregate
) -> Iterator[SystemRow]:
    """Return the systems: by aggregate, then those with a score in most benchmarks, then by name.

    ``entries`` all have a score.
    """
    systems: dict[tuple[str, int], dict[str, Entry]] = {}
    for entry in entries:
        systems.setdefault(get_key(entry), {})[entry.names.benchmark] = entry

    def place(key: tuple[str, int]) -> tuple[float, int, float, tuple[str, int]]:
        cells = list(systems[key].values())
        ratio = total.ratios.get(key)
        cost = min(entry.standing.cost for entry in cells)
        return -(ratio.value if ratio else 0.0), -len(cells), cost, key

    for key in sorted(systems, key=place):
        by_benchmark = systems[key]
        cells = [by_benchmark.get(name) for name in benchmarks]
        first = next(entry for entry in cells if entry)
        ratio = total.ratios.get(key)
        yield SystemRow(
            first,
            first.name,
            any(entry and entry.level for entry in cells),
            tuple(make_score_cell(e, 1.0) if e else None for e in cells),
            ratio,
            format_ratio_interval(ratio) if ratio else "",
        )
