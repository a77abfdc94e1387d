"""A result: every run on a time line, its curve, the RCP test, findings, raw logs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cepheid.compliance.finding import Finding
from cepheid.compliance.read.summary import Span
from cepheid.compliance.score.kinds import GENERATION, format_minutes, format_number
from cepheid.leaderboard.plots import curves, scaling
from cepheid.leaderboard.plots.scale import Scale, Tick
from cepheid.leaderboard.rows.cells import format_reference
from cepheid.leaderboard.rows.data import describe_entry
from cepheid.leaderboard.rows.entry import Entry, Run
from cepheid.leaderboard.rows.runs import list_metrics
from cepheid.leaderboard.rows.statuses import describe_decision, list_decisions
from cepheid.leaderboard.site.markup import mark, write_bar, write_spans
from cepheid.leaderboard.site.view import (
    Site,
    describe_standing,
    find_half_width,
    make_score_cell,
    render,
)
from cepheid.rules.digests import digest_code
from cepheid.rules.metrics import METRICS

if TYPE_CHECKING:  # not part of the core
    from markupsafe import Markup

FINDINGS_MAX = 200
LINE_WIDTH, LINE_LEFT, LINE_HEIGHT = 720.0, 62.0, 26.0


@dataclass(frozen=True)
class TimeLine:
    """A run as a row of bars; ``start`` is where the clock of the score starts."""

    number: int
    y: float
    bars: "Markup"
    start: float | None


@dataclass(frozen=True)
class TimeLines:
    """All runs on one scale, in seconds since each one's initialisation began."""

    lines: tuple[TimeLine, ...]
    ticks: tuple[Tick, ...]
    height: float
    left_out: int
    spans: "Markup"


@dataclass(frozen=True)
class RunLine:
    """A run in the table."""

    run: Run
    log: str
    fate: str
    minutes: str
    samples: str
    kilojoules: str
    quality: tuple[str, ...]


def make_pages(site: Site, entries: Sequence[Entry]) -> Iterator[tuple[str, str]]:
    """Make the pages of some results."""
    for entry in entries:
        yield entry.page, _render_page(site, entry)


def _render_page(site: Site, entry: Entry) -> str:
    definition = entry.definition
    metrics = list_metrics(definition) if definition else []
    colour = site.devices.get(entry.hardware.device, 0)
    rcp = scaling.plot_rcp(entry, colour)
    return render(
        site,
        "result.html",
        entry.page,
        entry=entry,
        round_kind=entry.round_kind,
        cell=make_score_cell(entry, find_half_width([entry])),
        definition=definition,
        metrics=metrics,
        runs=[_make_run_line(site, entry, run, metrics) for run in entry.runs],
        lines=make_time_lines(entry.runs),
        plots=curves.plot_results([entry], {entry.id: colour}, definition, "result"),
        colour=colour,
        generation=METRICS if entry.kind is GENERATION else (),
        rcp=rcp,
        rcp_said=format_reference(entry),
        provenance=list(_list_provenance(site, entry)),
        findings=entry.findings[:FINDINGS_MAX],
        decisions=list(map(describe_decision, list_decisions(entry.judged.who, entry))),
        citation=cite(site, entry),
        findings_left=max(0, len(entry.findings) - FINDINGS_MAX),
        place=_find_places(site, entry),
        code=site.link(entry.page, entry.code) if entry.code else "",
        folder=site.link(entry.page, entry.judged.folder.path),
        picture=f"{entry.id.rsplit('/', 1)[-1]}.png" if entry.picture else "",
    )


def cite(site: Site, entry: Entry) -> str:
    """Say how to cite a result: whose, of what, in which round, and the digest of its files."""
    names, published = entry.names, entry.judged.judged_in.published
    task = ", ".join(filter(None, (names.benchmark, names.scale, f"{names.division} division")))
    score = make_score_cell(entry, 1.0).text or describe_standing(entry)
    digests = {Path(path).name: digest for path, digest in entry.judged.summary.digests.items()}
    parts = [
        f"{names.submitter}: {task}, on {names.system}: {score}",
        f"Cepheid {site.round}" + (f", published {published}" if published else ""),
        entry.page,
        f"commit {site.commit}" if site.commit else "",
        f"SHA-256 of the logs {digest_code(digests)}" if digests else "",
    ]
    return ". ".join(filter(None, parts)) + "."


def _list_provenance(site: Site, entry: Entry) -> Iterator[tuple[str, str]]:
    """List what ties a result to its time, its rules and its code, as far as it is known."""
    said = describe_entry(entry)
    days = dict.fromkeys(filter(None, (said["first_run"], said["last_run"])))
    facts = {
        "round": said["round"],
        "runs made (UTC)": " to ".join(days),
        "definition digest": said["definition_digest"],
        "code digest": said["code_digest"],
        "commit of the submissions": site.commit,
    }
    return ((name, str(text)) for name, text in facts.items() if text)


def _find_places(site: Site, entry: Entry) -> "dict[int, tuple[str, str]]":
    """Return the short name with the line, and the link, for each finding that is shown."""
    places = {}
    root = entry.judged.folder.path
    for number, finding in enumerate(entry.findings[:FINDINGS_MAX]):
        place = _find_nearest(finding.path)  # a file may be what is missing
        places[number] = (_shorten_place(finding, root), site.link(entry.page, place))
    return places


def _find_nearest(path: Path) -> Path:
    return next((place for place in (path, *path.parents) if place.exists()), path)


def _shorten_place(finding: Finding, root: Path) -> str:
    path = finding.path
    name = path.name if path.parent == root or path == root else "/".join(path.parts[-2:])
    return name + (f":{finding.line}" if finding.line is not None else "")


def _make_run_line(site: Site, entry: Entry, run: Run, metrics: list[str]) -> RunLine:
    last = run.course.curve[-1].metrics if run.course.curve else {}
    fate = "dropped" if entry.has_score and not run.counts else ""
    return RunLine(
        run,
        site.link(entry.page, run.summary.path),
        fate,
        "" if run.summary.seconds is None else format_minutes(run.summary.seconds / 60),
        _format_samples(run),
        "" if run.summary.joules is None else format_number(run.summary.joules / 1000),
        tuple(f"{last[name]:.4g}" if name in last else "" for name in metrics),
    )


def _format_samples(run: Run) -> str:
    """Format the samples to the target, and where between two evaluations it was crossed."""
    samples, crossing = run.summary.samples, run.summary.crossing
    crossed = "" if crossing is None else f" (crossed at {crossing:,.0f})"
    return "" if samples is None else f"{samples:,}{crossed}"


def make_time_lines(runs: tuple[Run, ...]) -> TimeLines | None:
    """Return bars for every run, or None where no run has any."""
    longest = max((span.stop_seconds for run in runs for span in run.course.spans), default=0.0)
    if longest <= 0:
        return None
    across = Scale(0.0, longest, False, LINE_LEFT, LINE_WIDTH - 10)
    lines = []
    for position, run in enumerate(runs):
        y = 8 + position * LINE_HEIGHT
        bars = mark("").join(
            write_bar(
                span.kind,
                f"run {run.summary.number}, {describe_span(span)}",
                across(span.start_seconds),
                y,
                round(max(0.4, across(span.stop_seconds) - across(span.start_seconds)), 1),
            )
            for span in run.course.spans
        )
        start = (
            None if run.course.run_start_seconds is None else across(run.course.run_start_seconds)
        )
        lines.append(TimeLine(run.summary.number, y, bars, start))
    return TimeLines(
        tuple(lines),
        across.make_ticks(lambda value: f"{value:g} s"),
        8 + len(runs) * LINE_HEIGHT,
        sum(run.course.left_out_spans for run in runs),
        write_spans((run.summary.number, span) for run in runs for span in run.course.spans),
    )


def describe_span(span: Span) -> str:
    """Return a span as text, as in ``evaluation, 4,000 samples: 12.1 s to 14.0 s``."""
    what = ", ".join(filter(None, (span.kind, span.note)))
    return f"{what}: {span.start_seconds:.1f} s to {span.stop_seconds:.1f} s"
