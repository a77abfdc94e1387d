"""What all pages share: the site as a whole, links, templates, the spread of a result's runs."""

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from compliance.finding import escape
from compliance.leaderboard.numbers import digits, generation_interval, interval, minutes
from compliance.leaderboard.row import RANKED_BY, Row
from compliance.site.entry import Entry, Run
from compliance.site.plots.plot import colour

if TYPE_CHECKING:
    import jinja2

HERE = Path(__file__).parent
REASONS_MAX = 12  # of one result on a page of many; its own page has them all
_SPREAD_LEAST = 0.05  # half width of the spread's scale, as a share of the mean
_SPREAD_WIDTH = 176


@dataclass(frozen=True)
class Tab:
    """A table of the round: the results of one scale and division."""

    name: str
    scale: str
    division: str
    entries: tuple[Entry, ...]

    @property
    def page(self) -> str:
        """Where it stands."""
        return f"{self.name}.html"

    @property
    def title(self) -> str:
        """``mini scale, closed division``."""
        scale = f"{self.scale} scale, " if self.scale else ""
        return f"{scale}{self.division} division"


@dataclass(frozen=True)
class Site:
    """Everything that pages are made of. ``folder`` is where the site will stand: links to the logs
    are relative to it."""

    round: str
    entries: tuple[Entry, ...]
    folder: Path
    reference: str = ""

    @cached_property
    def tabs(self) -> tuple[Tab, ...]:
        """The tables of the round, the official one first."""
        return tuple(_tabs(self.entries))

    @cached_property
    def benchmarks(self) -> tuple[tuple[str, str, str], ...]:
        """Benchmark, scale and page of those that the round knows and that have a result."""
        known = [entry for entry in self.entries if entry.is_known]
        found = {
            e.benchmark_page: (e.row.benchmark, e.row.scale or "", e.benchmark_page) for e in known
        }
        return tuple(found.values())


def _tabs(entries: Iterable[Entry]) -> Iterable[Tab]:
    """Full scale before others, closed before open; last what has no benchmark of the round."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.tab, []).append(entry)

    def place(item: tuple[str, list[Entry]]) -> tuple[bool, bool, bool, str]:
        name, members = item
        row, is_known = members[0].row, any(entry.is_known for entry in members)
        return not is_known, row.scale != "full", row.division != "closed", name

    for name, members in sorted(found.items(), key=place):
        row = members[0].row
        yield Tab(name, row.scale or "", row.division, tuple(members))


@cache
def environment() -> "jinja2.Environment":
    """The templates; names and reasons come from whoever wrote the logs, so all is escaped."""
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals.update(minutes=minutes, digits=digits, standing=standing)
    return made


def _printable(value: object) -> object:
    """No direction mark or control character of a name reaches a page; markup is ours."""
    return escape(value) if type(value) is str else value


def render(site: Site, template: str, page: str, **context: Any) -> str:
    """A page as text. ``page`` is where it will stand, ``root`` in a template the way back up."""
    depth = page.count("/")
    made = environment().get_template(template)
    return made.render(site=site, page=page, root="../" * depth, **context) + "\n"


def link_from(page: str, folder: Path, path: Path) -> str:
    """The relative link from a page of the site to a file beside it.

    Quoted, so that no folder's name can be taken for a scheme or for markup.
    """
    here = os.path.dirname(os.path.join(os.path.abspath(folder), page))
    relative = os.path.relpath(os.path.abspath(path), here)
    return quote(Path(relative).as_posix(), errors="surrogateescape")


def standing(row: Row) -> str:
    """What stands in place of a score, or beside it in a round of MLPerf."""
    return row.standing or row.verdict


@dataclass(frozen=True)
class Dot:
    """One run in the drawing of the spread; ``place`` is in the units of the drawing."""

    place: float
    kind: str  # counted, dropped, or missed for a run that did not converge
    title: str


@dataclass(frozen=True)
class Spread:
    """The runs of a scored result around their mean, and its interval."""

    dots: tuple[Dot, ...]
    low: float
    high: float
    middle: float
    title: str


@dataclass(frozen=True)
class ScoreCell:
    """The score of a result where results stand beside each other."""

    entry: Entry
    value: float | None
    text: str
    unit: str
    interval: str
    spread: Spread | None
    so_far: str


def score_value(row: Row) -> tuple[float | None, float | None, float | None]:
    """What results are ranked by and its interval: minutes, or images per second."""
    if row.generates:
        found = row.generation.get(RANKED_BY)
        return (found.mean, found.low, found.high) if found else (None, None, None)
    return row.score_minutes, row.score_low, row.score_high


def unit_of(row: Row) -> str:
    """``min``, or ``images/s``."""
    return "images/s" if row.generates else "min"


def score_cell(entry: Entry, half_width: float) -> ScoreCell:
    """The score with its spread; ``half_width`` is that of the drawing, as a share of the mean."""
    row = entry.row
    value, _, _ = score_value(row)
    show = digits if row.generates else minutes
    so_far = row.provisional_generation.get(RANKED_BY) or row.provisional_minutes
    return ScoreCell(
        entry,
        value,
        "" if value is None else show(value),
        unit_of(row),
        generation_interval(row) if row.generates else interval(row),
        spread(entry, half_width),
        "" if so_far is None else show(so_far),
    )


def half_width_of(entries: Iterable[Entry]) -> float:
    """Half of the width of the spreads that stand in one table, as a share of the mean."""
    widest = max((_deviation(entry) for entry in entries), default=0.0)
    return max(1.08 * widest, _SPREAD_LEAST)


def _values(entry: Entry) -> list[tuple[float, Run]]:
    if entry.row.generates:
        return [(run.summary.generation.get(RANKED_BY, math.inf), run) for run in entry.runs]
    return [(run.summary.minutes, run) for run in entry.runs]


def _deviation(entry: Entry) -> float:
    mean, low, high = score_value(entry.row)
    if not mean:
        return 0.0
    ends = [value for value, _ in _values(entry) if math.isfinite(value)]
    ends += [end for end in (low, high) if end is not None]
    return max((abs(value - mean) / mean for value in ends), default=0.0)


def spread(entry: Entry, half_width: float) -> Spread | None:
    """Where the runs of a scored result lie around their mean; None without a score."""
    mean, low, high = score_value(entry.row)
    if not mean:
        return None

    def place(value: float) -> float:
        return round(_SPREAD_WIDTH / 2 * (1 + (value - mean) / mean / half_width), 1)

    unit = unit_of(entry.row)
    dots = []
    for value, run in sorted(_values(entry), key=lambda found: (found[0], found[1].summary.number)):
        if not math.isfinite(value):
            dots.append(Dot(_SPREAD_WIDTH, "missed", f"run {run.summary.number} did not converge"))
            continue
        kind, note = ("counted", "") if run.counts else ("dropped", ", dropped from the mean")
        if entry.row.generates:
            kind, note = "counted", ""  # each metric drops other runs
        dots.append(
            Dot(place(value), kind, f"run {run.summary.number}: {digits(value)} {unit}{note}")
        )
    title = f"{len(dots)} runs around {digits(mean)} {unit}"
    ends = (mean if low is None else low, mean if high is None else high)
    return Spread(tuple(dots), place(ends[0]), place(ends[1]), _SPREAD_WIDTH / 2, title)


def colours(entries: Sequence[Entry]) -> dict[str, int]:
    """A colour for each result that is not rejected, the best first."""
    shown = [entry for entry in entries if entry.row.verdict != "rejected"]
    return {entry.id: colour(number) for number, entry in enumerate(shown)}


def name_of(entry: Entry) -> str:
    """``submitter/system``, with a number where others bear the name too."""
    number = f" ({entry.twin})" if entry.twin > 1 else ""
    return f"{entry.row.submitter}/{entry.row.system}{number}"
