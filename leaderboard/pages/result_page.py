"""A result: every run on a time line, its curve, the RCP test, findings, raw logs."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cepheid.compliance.finding import Finding
from cepheid.compliance.score.kinds import GENERATION, TRAINING, Unit
from cepheid.leaderboard.plots import charts
from cepheid.leaderboard.plots.drawing import draw_text, element, mark, titled
from cepheid.leaderboard.plots.plot import Scale
from cepheid.leaderboard.rows.cells import choose_unit, name_unit
from cepheid.leaderboard.rows.data import describe_entry, find_days
from cepheid.leaderboard.rows.entry import Entry, Run, describe_group
from cepheid.leaderboard.rows.facts import list_metrics
from cepheid.leaderboard.rows.statuses import describe_decision, list_decisions
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
LINE_WIDTH, LINE_LEFT, LINE_HEIGHT, LINE_TOP = 720.0, 62.0, 26.0, 8.0
WHAT = "seconds since the start of the initialisation"


def make_pages(site: Site, entries: Sequence[Entry]) -> Iterator[tuple[str, str]]:
    """Make the pages of some results."""
    for entry in entries:
        yield entry.page, _render_page(site, entry)


def _render_page(site: Site, entry: Entry) -> str:
    definition = entry.definition
    colour = site.devices.get(entry.hardware.device, 0)
    spans = [(str(run.summary.number), span) for run in entry.runs for span in run.course.spans]
    seconds = "{:.3f}".format
    own = [finding for finding in entry.findings if not _is_of_another(finding, entry)]
    shown = own[:FINDINGS_MAX]
    metrics = list_metrics(definition) if definition else []
    is_generated = entry.kind is GENERATION
    unit = _choose_unit_of_time(entry)
    done = [f"#{one.heading}" for one in METRICS] if is_generated else ["#samples"]
    heads = [f"#{name}" for name in metrics]
    drawn = charts.plot_results([entry], {entry.id: colour}, definition, "result")
    return render(
        site,
        "result.html",
        entry.page,
        entry=entry,
        cell=make_score_cell(entry),
        half_width=find_half_width([entry]),
        definition=definition,
        metrics=metrics,
        unit=unit,
        run_heads=["run", f"#{name_unit(unit)}", "status", *done, "#seed", "#kJ", *heads, "log"],
        lines=draw_time_lines(entry.runs),
        spans=[
            (number, one.kind, one.note, seconds(one.start_seconds), seconds(one.stop_seconds))
            for number, one in spans
        ],
        left_out=sum(run.course.left_out_spans for run in entry.runs),
        plots=list(filter(None, drawn)),
        colour=colour,
        generation=METRICS if is_generated else (),
        rcp=charts.plot_rcp(entry, colour),
        provenance=list(_list_provenance(site, entry)),
        findings=[(finding, *_find_place(site, entry, finding)) for finding in shown],
        findings_left=len(own) - len(shown),
        decisions=list(map(describe_decision, list_decisions(entry.judged.who, entry))),
        citation=cite(site, entry),
        code=site.link(entry.page, entry.code) if entry.code else "",
        folder=site.link(entry.page, entry.judged.folder.path),
        picture=f"{entry.id.rsplit('/', 1)[-1]}.png" if entry.picture else "",
    )


def _is_of_another(finding: Finding, entry: Entry) -> bool:
    """Return True for a warning or note about the submitter's code for another benchmark."""
    codes = Path(os.path.normpath(entry.judged.folder.path / "../../../benchmarks"))
    own, path = codes / entry.names.benchmark, finding.path
    is_of_another = path.is_relative_to(codes) and not path.is_relative_to(own)
    return is_of_another and not finding.is_error


def _choose_unit_of_time(entry: Entry) -> Unit:
    """Choose the unit of the runs' times, also where no run converged, or images are made."""
    longest = max((run.summary.seconds or 0 for run in entry.runs), default=0)
    chosen = None if entry.kind is GENERATION else choose_unit([entry])
    return chosen or TRAINING.choose_unit(longest / 60)


def cite(site: Site, entry: Entry) -> str:
    """Say how to cite a result: whose, of what, in which round, and the digest of its files."""
    published = entry.judged.judged_in.published
    score = make_score_cell(entry).text or describe_standing(entry)
    digests = {Path(path).name: digest for path, digest in entry.judged.summary.digests.items()}
    names = entry.names
    task = describe_group(names.benchmark, names.scale, names.division)
    parts = (
        f"{names.submitter}: {task}, on {names.system}: {score}",
        f"Cepheid {site.round}" + (f", published {published}" if published else ""),
        entry.page,
        f"commit {site.commit}" if site.commit else "",
        f"SHA-256 of the logs {digest_code(digests)}" if digests else "",
    )
    return ". ".join(filter(None, parts)) + "."


def _list_provenance(site: Site, entry: Entry) -> Iterator[tuple[str, str]]:
    """List what ties a result to its time, its rules and its code, as far as it is known."""
    said = describe_entry(entry)
    days = dict.fromkeys(filter(None, find_days(entry)))
    facts = {
        "round": said["round"],
        "runs made (UTC)": " to ".join(days),
        "definition digest": said["definition_digest"],
        "code digest": said["code_digest"],
        "commit of the submissions": site.commit,
    }
    return ((name, str(text)) for name, text in facts.items() if text)


def _find_place(site: Site, entry: Entry, finding: Finding) -> tuple[str, str]:
    """Return the short name with the line, and the link, of where a finding is."""
    path, root = finding.path, entry.judged.folder.path
    nearest = next((place for place in (path, *path.parents) if place.exists()), path)
    name = path.name if root in (path, path.parent) else "/".join(path.parts[-2:])
    line = f":{finding.line}" if finding.line is not None else ""
    return name + line, site.link(entry.page, nearest)  # a file may be what is missing


def draw_time_lines(runs: Sequence[Run]) -> "Markup":
    """Draw a row of bars for every run, on one scale of seconds since each one's beginning.

    Nothing where no run has any.
    """
    longest = max((span.stop_seconds for run in runs for span in run.course.spans), default=0.0)
    if longest <= 0:
        return mark("")
    across = Scale(0.0, longest, False, LINE_LEFT, LINE_WIDTH - 10)
    bottom = LINE_TOP + len(runs) * LINE_HEIGHT
    parts = [
        element("title", "Time line of the runs", id="tl-title"),
        element("desc", "For each run: initialisation, blocks of training and evaluations, in "
                "seconds since the start of the initialisation.", id="tl-desc"),
    ]  # fmt: skip
    for tick in across.make_ticks(lambda value: f"{value:g} s"):
        x = tick.place
        parts.append(element("line", class_="gridline", x1=x, x2=x, y1=0, y2=bottom))
        parts.append(draw_text(tick.label, "middle", x=x, y=bottom + 14))
    for position, run in enumerate(runs):
        y, number = LINE_TOP + position * LINE_HEIGHT, run.summary.number
        parts.append(draw_text(f"run {number}", "end", x=LINE_LEFT - 8, y=y + 13, class_="label"))
        for span in run.course.spans:
            x, stop = across(span.start_seconds), across(span.stop_seconds)
            what = ", ".join(filter(None, (span.kind, span.note)))
            ends = f"{span.start_seconds:.1f} s to {span.stop_seconds:.1f} s"
            said = titled(f"run {number}, {what}: {ends}")
            size = {"width": round(max(0.4, stop - x), 1), "height": 17}
            parts.append(element("rect", said, class_=span.kind, x=x, y=y, **size))
        if run.course.run_start_seconds is not None:
            x, said = across(run.course.run_start_seconds), f"run {number}: run_start, the clock"
            line = {"x1": x, "x2": x, "y1": y - 3, "y2": y + 20}
            parts.append(element("line", titled(f"{said} of the score"), class_="start", **line))
    parts.append(
        draw_text(WHAT, "middle", x=(LINE_LEFT + LINE_WIDTH) / 2, y=bottom + 31, class_="label")
    )
    frame = {"viewBox": f"0 0 {LINE_WIDTH} {bottom + 34}", "role": "img"}
    named = {"aria_labelledby": "tl-title tl-desc"}
    return mark(element("svg", "\n".join(parts), class_="timelines", **frame, **named))
