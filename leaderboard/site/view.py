"""What all pages share: the site as a whole, templates, the number of a result and its spread."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from cepheid.compliance.finding import escape
from cepheid.compliance.read.decisions import Reproduction
from cepheid.compliance.report.rulebook import read_rules
from cepheid.compliance.score.kinds import Unit, format_minutes, format_number
from cepheid.compliance.score.trimmed import Estimate
from cepheid.leaderboard.plots.drawing import (
    draw,
    draw_shape,
    element,
    mark,
    soften,
    titled,
    write_links,
    write_rows,
)
from cepheid.leaderboard.plots.plot import get_shape, name_look, pick_colour
from cepheid.leaderboard.rows.cells import (
    describe_basis,
    format_range,
    format_reference,
    format_value,
    suggest_command,
)
from cepheid.leaderboard.rows.data import find_days
from cepheid.leaderboard.rows.entry import Entry, Group, describe_group, group_entries
from cepheid.leaderboard.rows.statuses import list_decisions
from cepheid.leaderboard.site.evidence import Evidence, link_beside
from cepheid.leaderboard.site.history import (
    Line,
    Round,
    Since,
    add_current,
    compare_with_last,
    trace_bests,
)
from cepheid.rules.layout import count

if TYPE_CHECKING:
    import jinja2
    from markupsafe import Markup

GLOSSARY = Path(__file__).with_name("glossary.yaml")
TEMPLATES = Path(__file__).parents[1] / "templates"
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
        """The file of its page."""
        return f"{self.name}.html"

    @property
    def title(self) -> str:
        """``mini scale, closed division``."""
        return describe_group("", self.scale, self.division)

    @property
    def size(self) -> str:
        """``12 benchmarks, 1 result``."""
        benchmarks = len({entry.names.benchmark for entry in self.entries})
        return f"{count(benchmarks, 'benchmark')}, {count(len(self.entries), 'result')}"


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

    def link(self, page: str, path: Path) -> str:
        """Return the link from a page to a submitted file or folder, empty without one."""
        return self.evidence.link(page, path)

    @property
    def evidence(self) -> Evidence:
        """Where a reader finds the submitted files."""
        return self.elsewhere or link_beside(self.folder)

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
    def bests(self) -> dict[Group, Line]:
        """The best results of each benchmark, scale and division over the rounds."""
        return {line.group: line for line in trace_bests(self.rounds)}

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
        """List the devices of some results with their colours."""
        names = {entry.hardware.device for entry in entries}
        return [(name, colour) for name, colour in self.devices.items() if name in names]

    def colour(self, entries: Iterable[Entry]) -> dict[str, int]:
        """Return the colour of each result that is not rejected: that of its device."""
        shown = (entry for entry in entries if not entry.standing.is_rejected)
        return {entry.id: self.devices[entry.hardware.device] for entry in shown}

    @cached_property
    def last_run(self) -> str:
        """The day of the last run, which says how old the site is: nothing here reads a clock."""
        return max((find_days(entry)[1] or "" for entry in self.entries), default="")

    @property
    def about(self) -> str:
        """Say in a sentence what the site is."""
        who = len({entry.names.submitter for entry in self.entries})
        return (
            "How fast systems train deep networks to a given quality: "
            f"{count(len(self.entries), 'result')} of {count(who, 'submitter')}, each computed "
            "from its run logs and checked against the rules."
        )

    @property
    def publisher(self) -> str:
        """Say in a sentence who publishes the site."""
        judged_in = self.entries[0].judged.judged_in
        if judged_in.is_mlperf:
            return "MLCommons published these results; this site judges their logs again."
        if judged_in.published:
            return f"The organisers of {self.round} published it on {judged_in.published}."
        return f"Made from logs on disk; the organisers of {self.round} did not publish it."

    @cached_property
    def tabs(self) -> tuple[Tab, ...]:
        """The tables of the round: full scale first, closed before open, unknown ones last."""

        def place(tab: Tab) -> tuple[bool, bool, bool, str]:
            is_known = any(entry.is_known for entry in tab.entries)
            return not is_known, tab.scale != "full", tab.division != "closed", tab.name

        groups = group_entries(self.entries, lambda entry: entry.tab).items()
        tabs = (
            Tab(name, members[0].names.scale or "", members[0].names.division, tuple(members))
            for name, members in groups
        )
        return tuple(sorted(tabs, key=place))

    @cached_property
    def benchmarks(self) -> tuple[tuple[str, str, str], ...]:
        """Benchmark, scale and page of those that the round knows and that have a result."""
        known = (entry for entry in self.entries if entry.is_known)
        return tuple(
            (entry.names.benchmark, entry.names.scale or "", page)
            for page, (entry, *_) in group_entries(known, lambda e: e.benchmark_page).items()
        )


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
        # direction marks and control characters of a name; markup is our own
        finalize=lambda value: escape(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(rows=write_rows, soften=soften, cite=write_links)
    functions = (
        count, describe_basis, describe_standing, draw, draw_shape, draw_spread, explain,
        format_minutes, format_number, format_reference, get_shape, is_history, is_reproduced,
        make_score_cell, name_look, suggest_command,
    )  # fmt: skip
    made.globals.update({function.__name__: function for function in functions})
    return made


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
class ScoreCell:
    """The number of a result where results stand beside each other: its score, or only a time.

    ``time`` is the time to train beside a score, None where it is the number itself.
    """

    entry: Entry
    text: str
    interval: str
    so_far: str
    time: Estimate | None
    time_text: str


def make_score_cell(entry: Entry, unit: Unit | None = None) -> ScoreCell:
    """Make the cell of a score; ``unit`` is that of its table."""
    kind, main, so_far = entry.kind, entry.main, entry.standing.so_far.get(entry.kind.ranked_by)
    time = entry.time if entry.is_scored and not entry.is_of_mlperf else None
    return ScoreCell(
        entry,
        format_value(kind, main.mean, unit) if main else "",
        format_range(entry, unit),
        "" if so_far is None else format_value(kind, so_far),
        time,
        format_value(kind, time.mean, unit) if time else "",
    )


def find_half_width(entries: Iterable[Entry]) -> float:
    """Return half of the width of the spreads that stand in one table, as a share of the mean."""
    far = (
        abs(value - entry.main.mean) / entry.main.mean
        for entry in entries
        if entry.main and entry.main.mean
        for value in (*(run.value for run in entry.runs), entry.main.low, entry.main.high)
        if value is not None
    )
    return max(1.08 * max(far, default=0.0), _SPREAD_LEAST)


def draw_spread(entry: Entry, half_width: float, colour: int) -> "Markup":
    """Draw where the runs of a result lie around their mean, and its interval."""
    main = entry.main
    if main is None or not main.mean:
        return mark("")
    mean, middle = main.mean, _SPREAD_WIDTH / 2

    def find_place(value: float | None) -> float:
        share = 0.0 if value is None else (value - mean) / mean
        return round(middle * (1 + share / half_width), 1)

    title = f"{count(len(entry.runs), 'run')} around {format_value(entry.kind, mean)}"
    low, high = find_place(main.low), find_place(main.high)
    parts = [
        titled(title),
        element("line", class_="axis", x1=0, x2=_SPREAD_WIDTH, y1=12, y2=12),
        element("line", class_="interval", x1=low, x2=high, y1=12, y2=12),
        element("line", class_="mean", x1=middle, x2=middle, y1=3, y2=21),
    ]
    for run in sorted(
        entry.runs, key=lambda r: (r.value is None, r.value or 0.0, r.summary.number)
    ):  # those that missed their targets last
        name = f"run {run.summary.number}"
        if run.value is None:
            cross = {"d": "M171 8 l9 9 m0 -9 l-9 9", "stroke_width": 2}
            said = titled(f"{name} did not converge")
            parts.append(element("path", said, class_=name_look(colour), **cross))
        else:
            said = f"{name}: {format_value(entry.kind, run.value)}"
            said += "" if run.counts else ", dropped from the mean"
            kind = f"{name_look(colour)}{' full' * run.counts}"
            place = find_place(run.value)
            parts.append(element("circle", titled(said), class_=kind, cx=place, cy=12, r=4.2))
    frame = {"viewBox": "-6 0 188 24", "role": "img", "aria_label": title}
    return mark(element("svg", "\n".join(parts), class_="spread", **frame))
