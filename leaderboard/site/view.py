"""What all pages share: the site as a whole, links, templates, the spread of a result's runs."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from cepheid.compliance.finding import escape
from cepheid.compliance.read.decisions import Reproduction
from cepheid.compliance.report.rulebook import read_rules
from cepheid.compliance.score.kinds import BenchmarkKind, Unit, format_minutes, format_number
from cepheid.compliance.score.trimmed import Estimate
from cepheid.leaderboard.plots.plot import COLOURS, get_shape, pick_colour
from cepheid.leaderboard.rows.cells import (
    describe_basis,
    find_time,
    format_range,
    format_value,
    suggest_command,
)
from cepheid.leaderboard.rows.entry import Entry, Run, Tab, group_entries
from cepheid.leaderboard.rows.runs import find_dates
from cepheid.leaderboard.rows.statuses import list_decisions
from cepheid.leaderboard.site.evidence import Beside, Evidence
from cepheid.leaderboard.site.history import Round, Since, add_current, compare_with_last
from cepheid.leaderboard.site.markup import soften, write_links, write_rows

if TYPE_CHECKING:
    import jinja2

GLOSSARY = Path(__file__).with_name("glossary.yaml")
TEMPLATES = Path(__file__).parents[1] / "templates"
REASONS_MAX = 12  # of one result on a page of many; its own page has them all
_SPREAD_LEAST = 0.05  # half width of the spread's scale, as a share of the mean
_SPREAD_WIDTH = 176


@dataclass(frozen=True)
class Site:
    """Everything that pages are made of.

    ``folder`` is where the site will stand, so that links to the logs can be relative to it, unless
    ``elsewhere`` says where a reader finds them. ``commit`` is that of the repository of the
    submissions, as whoever publishes them says. ``earlier`` are the rounds before, oldest first.
    ``changes`` are what changed since the publication, by day, the latest first.
    """

    round: str
    entries: tuple[Entry, ...]
    folder: Path
    reference: str = ""
    commit: str = ""
    elsewhere: Evidence | None = None
    earlier: tuple[Round, ...] = ()
    changes: tuple[Mapping[str, Any], ...] = ()

    @property
    def evidence(self) -> Evidence:
        """Where a reader finds the submitted files."""
        return self.elsewhere or Beside(self.folder)

    @property
    def has_decisions(self) -> bool:
        """True where there is something that organisers decided, or that changed since."""
        return bool(self.changes) or any(
            e.judged.who and e.judged.who.decisions for e in self.entries
        )

    @cached_property
    def rounds(self) -> list[Round]:
        """The earlier rounds and this one; empty without earlier ones."""
        return add_current(self.earlier, self.round, self.entries) if self.earlier else []

    @cached_property
    def ranks_before(self) -> dict[str, int]:
        """The rank that each result had in the last round, by permalink."""
        last = self.earlier[-1].results if self.earlier else {}
        return {name: rank for name, one in last.items() if (rank := one.get("rank"))}

    @cached_property
    def since(self) -> dict[str, Since]:
        """What has become of each result with a score since the last round, by permalink."""
        return compare_with_last(self.rounds)

    @cached_property
    def devices(self) -> Mapping[str, int]:
        """The colour of each device on all pages: those with the most results have one."""
        counts = Counter(e.hardware.device for e in self.entries if not e.standing.is_rejected)
        order = sorted(counts, key=lambda device: (-counts[device], device))
        return {device: pick_colour(number) for number, device in enumerate(order)}

    def list_devices(self, entries: Iterable[Entry]) -> list[tuple[str, int]]:
        """List the devices of some results with their colours; those without one are together."""
        names = {entry.hardware.device for entry in entries}
        found = {n: c for n, c in self.devices.items() if n in names and c < COLOURS}
        others = {"other devices": COLOURS} if len(found) < len(names & self.devices.keys()) else {}
        return [*(found | others).items()]

    @cached_property
    def last_run(self) -> str:
        """The day of the last run, which says how old the site is: nothing here reads a clock."""
        days = (find_dates(run.started_ms for run in e.judged.runs) for e in self.entries)
        return max((found[1] for found in days if found), default="")

    @property
    def about(self) -> str:
        """Say in a sentence what the site is."""
        results, who = len(self.entries), len({e.names.submitter for e in self.entries})
        return (
            "How fast systems train deep networks to a given quality: "
            f"{results:,} result{'' if results == 1 else 's'} of {who} "
            f"submitter{'' if who == 1 else 's'}, each computed from its run logs and checked "
            "against the rules."
        )

    def colour(self, entries: Iterable[Entry]) -> dict[str, int]:
        """Return the colour of each result that is not rejected: that of its device."""
        shown = (entry for entry in entries if not entry.standing.is_rejected)
        return {entry.id: self.devices[entry.hardware.device] for entry in shown}

    def link(self, page: str, path: Path) -> str:
        """Return the link from a page to a submitted file or folder, empty without one."""
        return self.evidence.link(page, path)

    @cached_property
    def tabs(self) -> tuple[Tab, ...]:
        """The tables of the round, the official one first."""
        return tuple(_list_tabs(self.entries))

    @cached_property
    def benchmarks(self) -> tuple[tuple[str, str, str], ...]:
        """Benchmark, scale and page of those that the round knows and that have a result."""
        known = [entry for entry in self.entries if entry.is_known]
        by_page = {
            e.benchmark_page: (e.names.benchmark, e.names.scale or "", e.benchmark_page)
            for e in known
        }
        return tuple(by_page.values())


def _list_tabs(entries: Iterable[Entry]) -> Iterable[Tab]:
    """List the tables: full scale first, closed before open, unknown benchmarks last."""
    groups = group_entries(entries, lambda entry: entry.tab)

    def place(item: tuple[str, list[Entry]]) -> tuple[bool, bool, bool, str]:
        name, members = item
        row, is_known = members[0], any(entry.is_known for entry in members)
        return not is_known, row.names.scale != "full", row.names.division != "closed", name

    for name, members in sorted(groups.items(), key=place):
        row = members[0]
        yield Tab(name, row.names.scale or "", row.names.division, tuple(members))


@dataclass(frozen=True)
class Term:
    """A word of the pages, its meaning in a sentence or two, and the rules that define it."""

    name: str
    meaning: str
    rules: tuple[str, ...] = ()


@cache
def load_terms() -> Mapping[str, Term]:
    """Load every word of the glossary, by the key of its column where there is one."""
    document = yaml.safe_load(GLOSSARY.read_text(encoding="utf-8"))
    return {
        key: Term(term["name"], term["meaning"], tuple(term.get("rules", ())))
        for key, term in document.items()
    }


def explain(key: str) -> str:
    """Return what a word means, as a hint of one line; empty for a word that has no term."""
    term = load_terms().get(key)
    if term is None:
        return ""
    rules = [rule for rule in term.rules if rule in read_rules()]
    return term.meaning + (f" (rule {', '.join(rules)})" if rules else "")


@cache
def load_templates() -> "jinja2.Environment":
    """Load the templates; names and reasons come from whoever wrote the logs, so all is escaped."""
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_escape_text,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(rows=write_rows, soften=soften, cite=write_links)
    made.globals.update(
        format_minutes=format_minutes,
        format_number=format_number,
        describe_basis=describe_basis,
        describe_standing=describe_standing,
        explain=explain,
        get_shape=get_shape,
        is_history=is_history,
        is_reproduced=is_reproduced,
        suggest_command=suggest_command,
    )
    return made


def _escape_text(value: object) -> object:
    """Escape direction marks and control characters of a name; markup is our own."""
    return escape(value) if type(value) is str else value


def render(site: Site, template: str, page: str, **context: Any) -> str:
    """Render a page as text.

    ``page`` is the file that it will be, ``root`` in a template the way back to the top.
    """
    depth = page.count("/")
    made = load_templates().get_template(template)
    return made.render(site=site, page=page, root="../" * depth, **context) + "\n"


def is_reproduced(entry: Entry) -> bool:
    """Return whether the organisers ran the result again and found it confirmed."""
    return any(isinstance(one, Reproduction) for one in list_decisions(entry.judged.who, entry))


def is_history(entry: Entry) -> bool:
    """Return whether a published round has accepted a result in which we find errors."""
    return entry.standing.verdict == "fail" and entry.judged.judged_in.as_published


def describe_standing(entry: Entry) -> str:
    """Say what stands in place of a score, or beside it in a round of MLPerf."""
    if is_history(entry):
        rules = ", ".join(dict.fromkeys(finding.rule for finding in entry.standing.errors))
        return f"accepted by MLPerf; deviates from our reading of {rules}"
    return entry.standing.text or entry.standing.verdict


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
    """The number of a result where results stand beside each other: its score, or only a time.

    ``time`` is the time to train beside a score, None where it is the number itself.
    """

    entry: Entry
    value: float | None
    text: str
    interval: str
    spread: Spread | None
    so_far: str
    time: Estimate | None
    time_text: str


def make_score_cell(entry: Entry, half_width: float, unit: Unit | None = None) -> ScoreCell:
    """Make the cell of a score with its spread.

    ``half_width`` is that of the drawing, as a share of the mean; ``unit`` is that of its table.
    """
    kind = entry.kind
    value = entry.standing.score.main.mean if entry.standing.score else None
    time = find_time(entry) if entry.is_scored and not entry.round_kind.has_verdicts else None
    so_far = entry.standing.so_far.get(kind.ranked_by)
    return ScoreCell(
        entry,
        value,
        "" if value is None else format_value(kind, value, unit),
        format_range(entry, unit),
        draw_spread(entry, half_width),
        "" if so_far is None else format_value(kind, so_far),
        time,
        format_value(kind, time.mean, unit) if time else "",
    )


def find_half_width(entries: Iterable[Entry]) -> float:
    """Return half of the width of the spreads that stand in one table, as a share of the mean."""
    widest = max((_find_deviation(entry) for entry in entries), default=0.0)
    return max(1.08 * widest, _SPREAD_LEAST)


def _find_deviation(entry: Entry) -> float:
    """Return the largest distance of a run or an end of the interval, as a share of the mean."""
    score = entry.standing.score
    if score is None or not score.main.mean:
        return 0.0
    mean, ends = score.main.mean, [score.main.low, score.main.high]
    values = [run.value for run in entry.runs]
    return max((abs(v - mean) / mean for v in (*values, *ends) if v is not None), default=0.0)


def draw_spread(entry: Entry, half_width: float) -> Spread | None:
    """Draw where the runs of a scored result lie around their mean; None without a score."""
    score = entry.standing.score
    if score is None or not score.main.mean:
        return None
    kind, mean = entry.kind, score.main.mean

    def find_place(value: float) -> float:
        return round(_SPREAD_WIDTH / 2 * (1 + (value - mean) / mean / half_width), 1)

    dots = [
        _draw_dot(kind, run, find_place)
        for run in sorted(
            entry.runs, key=lambda run: (run.value is None, run.value or 0.0, run.summary.number)
        )
    ]
    low, high = score.main.low, score.main.high
    return Spread(
        tuple(dots),
        find_place(mean if low is None else low),
        find_place(mean if high is None else high),
        _SPREAD_WIDTH / 2,
        f"{len(dots)} runs around {format_value(kind, mean)}",
    )


def _draw_dot(kind: BenchmarkKind, run: Run, find_place: Callable[[float], float]) -> Dot:
    """Draw a run: hollow if it is dropped from the mean, at the edge if it did not converge."""
    name = f"run {run.summary.number}"
    if run.value is None:
        return Dot(_SPREAD_WIDTH, "missed", f"{name} did not converge")
    note = "" if run.counts else ", dropped from the mean"
    title = f"{name}: {format_value(kind, run.value)}{note}"
    return Dot(find_place(run.value), "counted" if run.counts else "dropped", title)
