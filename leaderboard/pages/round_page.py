"""The round: for each scale and division a table with a row for each system, and every result."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cepheid.compliance.score.comparison import Ratio
from cepheid.compliance.score.kinds import GENERATION
from cepheid.leaderboard.plots.aggregate import (
    Aggregate,
    compute_aggregate,
    format_ratio_interval,
    get_key,
    plot_profiles,
)
from cepheid.leaderboard.plots.ranking import Ranking, VendorMark, choose_marks, make_ranking
from cepheid.leaderboard.rows.entry import Entry, Tab, group_entries
from cepheid.leaderboard.site.view import ScoreCell, Site, make_score_cell, render


@dataclass(frozen=True)
class Column:
    """A benchmark: its page, what runs, what is good, and its ranking."""

    name: str
    title: str
    page: str
    summary: str
    has_most_first: bool
    better: str
    provisional: str
    ranking: Ranking | None


@dataclass(frozen=True)
class SystemRow:
    """A system with a cell for each benchmark, None where it has no result."""

    first: Entry
    name: str
    ids: str
    cells: tuple[ScoreCell | None, ...]
    ratio: Ratio | None
    ratio_text: str


def make_pages(site: Site) -> Iterator[tuple[str, str]]:
    """Make a page for every tab, and the first of them once more as the start page."""
    for number, tab in enumerate(site.tabs):
        text = _render_page(site, tab)
        yield tab.page, text
        if number == 0:
            yield "index.html", text
    if not site.tabs:
        yield "index.html", render(site, "empty.html", "index.html")


def _render_page(site: Site, tab: Tab) -> str:
    known = [entry for entry in tab.entries if entry.is_known]
    members = group_entries(known, lambda entry: entry.names.benchmark)
    marks = choose_marks(known)
    ranked = [entry for entry in known if entry.is_ranked]
    made = [_make_column(entries, marks) for _, entries in sorted(members.items())]
    columns = [column for column in made if column.ranking]
    total = compute_aggregate(tab, site.reference)
    return render(
        site,
        "round.html",
        tab.page,
        tab=tab,
        columns=columns,
        without_score=[column for column in made if not column.ranking],
        marks=marks,
        ranked=ranked,
        rows=list(_make_rows(ranked, [column.name for column in columns], total)),
        aggregate=total,
        profiles=plot_profiles(tab),
        unranked=[make_score_cell(e, 1.0) for e in tab.entries if not e.is_ranked],
        provisional=[column for column in made if column.provisional],
        has_own_scores=any(not entry.round_kind.has_verdicts for entry in known),
        twins=[entry for entry in tab.entries if entry.twin > 1],
        runs=sum(len(entry.runs) for entry in tab.entries),
    )


def _make_column(entries: Sequence[Entry], marks: Mapping[str, VendorMark]) -> Column:
    row, definition = entries[0], entries[0].definition
    return Column(
        name=row.names.benchmark,
        title=definition.title if definition else "",
        page=entries[0].benchmark_page,
        summary=definition.summary if definition else "",
        has_most_first=row.kind is GENERATION,
        better=row.kind.better,
        provisional=row.provisional_targets,
        ranking=make_ranking(entries, marks),
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
            " ".join(entry.id for entry in cells if entry and entry.level),
            tuple(make_score_cell(e, 1.0) if e else None for e in cells),
            ratio,
            format_ratio_interval(ratio) if ratio else "",
        )
