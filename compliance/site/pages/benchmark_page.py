"""A benchmark at a scale: a summary of its rules, a table for each division, and plots."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from compliance.leaderboard.numbers import format_number, format_reference, rank_rows
from compliance.score.comparison import Ratio, ratio
from compliance.score.ranking import Rank
from compliance.site.entry import Entry
from compliance.site.kinds import PAGES
from compliance.site.pages.elsewhere_page import find_sets_about
from compliance.site.plots import scaling
from compliance.site.plots.aggregate import format_ratio_interval
from compliance.site.plots.plot import Plot, Table
from compliance.site.view import (
    ScoreCell,
    Site,
    choose_colours,
    find_half_width,
    make_score_cell,
    name_entry,
    render,
)
from rules.definition import Definition


@dataclass(frozen=True)
class Line:
    """A result in its table. ``behind`` compares it with the first of the table."""

    entry: Entry
    rank: Rank | None
    name: str
    colour: int | None
    cell: ScoreCell
    behind: str
    rcp: str
    kilojoules: str


@dataclass(frozen=True)
class Division:
    """The results of a division."""

    name: str
    lines: tuple[Line, ...]
    spread_percent: str
    plots: tuple[Plot, ...]
    other_targets: tuple[Table, ...]

    @property
    def has_rcp(self) -> bool:
        """Whether anything was compared with the reference."""
        return any(line.rcp for line in self.lines)

    @property
    def has_energy(self) -> bool:
        """Whether any energy was measured."""
        return any(line.kilojoules for line in self.lines)


def make_pages(site: Site) -> Iterator[tuple[str, str]]:
    """Make a page for each benchmark and scale that has a result."""
    found: dict[str, list[Entry]] = {}
    for entry in site.entries:
        if entry.is_known:
            found.setdefault(entry.benchmark_page, []).append(entry)
    for page, entries in found.items():
        yield page, _render_page(site, page, entries)


def _render_page(site: Site, page: str, entries: Sequence[Entry]) -> str:
    definition = next((entry.definition for entry in entries if entry.definition), None)
    names = sorted(
        {entry.row.names.division for entry in entries}, key=lambda n: (n != "closed", n)
    )
    divisions = [
        _make_division(
            name, [entry for entry in entries if entry.row.names.division == name], definition
        )
        for name in names
    ]
    row = entries[0].row
    return render(
        site,
        "benchmark.html",
        page,
        row=row,
        definition=definition,
        rules=_describe_rules(definition) if definition else [],
        divisions=divisions,
        metrics=[target.metric for target in definition.quality] if definition else [],
        generation=PAGES[row.kind].metrics,
        elsewhere=find_sets_about(row.names.benchmark),
        round_kind=row.round_kind,
    )


def _make_division(name: str, entries: Sequence[Entry], definition: Definition | None) -> Division:
    half_width = find_half_width(entries)
    of = choose_colours(entries)
    best = next((entry for entry in entries if entry.level is not None), None)
    ranks = [rank for _, rank in rank_rows([entry.row for entry in entries])]
    lines = [
        Line(
            entry,
            rank,
            name_entry(entry),
            of.get(entry.id),
            make_score_cell(entry, half_width),
            _compare_with_best(best, entry),
            format_reference(entry.row),
            "" if entry.row.kilojoules is None else format_number(entry.row.kilojoules),
        )
        for entry, rank in zip(entries, ranks, strict=True)
    ]
    pages = PAGES[entries[0].row.kind]
    plots = pages.draw_results(entries, of, definition, name) + pages.draw_field(entries, of, name)
    energy = scaling.plot_energy(entries, of, name)
    return Division(
        name,
        tuple(lines),
        f"{100 * half_width:.0f}",
        (*plots, energy) if energy else tuple(plots),
        tuple(pages.list_other_targets(entries, definition)),
    )


def _compare_with_best(best: Entry | None, entry: Entry) -> str:
    """Return how much slower than the first a result is, or that no difference can be claimed."""
    if best is None or best.level is None or entry.level is None or entry is best:
        return ""
    found: Ratio = ratio(best.level, entry.level)
    return format_ratio_interval(found) if found.is_difference else "no difference"


def _describe_rules(definition: Definition) -> list[tuple[str, str]]:
    """Return what a reader must know to understand a number, as name and text."""
    runs, timing = definition.runs, definition.timing
    dropped = f"the fastest {runs.drop_fastest} and the slowest {runs.drop_slowest} are dropped"
    facts = [
        ("target", " and ".join(map(str, definition.quality))),
        ("runs", f"{runs.required}, of which {dropped}"),
    ]
    if definition.generation:
        counts = ", ".join(f"{count:,}" for count in definition.generation.counts)
        facts.append(
            (
                "timed",
                f"generating {counts} images at a time; latency is that of the smallest number",
            )
        )
        facts.append(
            ("ranked by", "images per second with the largest number of images (rule T26)")
        )
    else:
        every = f"every {timing.eval_every_samples:,} samples"
        facts.append(("evaluation", f"{every}, at most {timing.max_samples:,} samples in all"))
        facts.append(("clock", "from run_start, before the data are touched, to run_stop"))
    fixed = [f"{h.name} {h.default}" for h in definition.hyperparameters.values() if h.fixed]
    if fixed:
        facts.append(("fixed in the closed division", ", ".join(fixed)))
    return facts
