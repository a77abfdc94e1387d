"""Pages made of lists: systems, history, comparisons, decisions, sources, the glossary, files.

The page that compares any results holds their levels, and ``compare.js`` compares them. It computes
what ``cepheid.compliance.score.comparison`` computes, with the same quantiles; a test compares the
two. What only chosen results need, descriptions and curves, is in a script beside the page of each
result: a page that was opened from a disk may read scripts and nothing else.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cepheid.compliance.finding import escape
from cepheid.compliance.report.rulebook import read_rules
from cepheid.leaderboard.plots.plot import Axis, Plot, Series, get_shape, make_plot
from cepheid.leaderboard.rows.cells import format_value
from cepheid.leaderboard.rows.data import describe_level
from cepheid.leaderboard.rows.entry import Entry, describe_group, group_entries, make_slug
from cepheid.leaderboard.rows.statuses import (
    HEADER,
    describe_decision,
    list_dates,
    list_decisions,
    list_statuses,
)
from cepheid.leaderboard.site.history import Line
from cepheid.leaderboard.site.records import (
    collect_hyperparameters,
    describe_curve,
    describe_targets,
    list_quantiles,
)
from cepheid.leaderboard.site.reported import load_sets
from cepheid.leaderboard.site.view import (
    Site,
    load_templates,
    load_terms,
    make_score_cell,
    render,
)
from cepheid.rules import rounds

COMPARE, DECISIONS, ELSEWHERE = "compare.html", "decisions.html", "elsewhere.html"
GLOSSARY, HISTORY = "glossary.html", "history.html"
FEED = "changes.xml"
TEXT_MAX = 2000  # characters of a fact of a system
TEXT_COMPARED_MAX = 200
POINTS_COMPARED_MAX = 100  # of the curve of a run


def make_system_pages(site: Site) -> Iterator[tuple[str, str]]:
    """Make a page for each submitter's system: its description, its results, their versions."""
    for page, entries in group_entries(site.entries, lambda entry: entry.system_page).items():
        described = next((e.judged.system for e in entries if e.judged.system), {})
        facts = list(list_facts(described))
        yield page, render(site, "system.html", page, row=entries[0], facts=facts, entries=entries)


def list_facts(system: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Return the fields of a description as words, those of software one by one."""
    for key, value in system.items():
        name = escape(str(key)[:80]).replace("_", " ")
        if isinstance(value, Mapping):
            for inner, text in value.items():
                yield f"{name}: {escape(str(inner)[:80])}", _format_value(text)
        elif value is not None:
            yield name, _format_value(value)


def _format_value(value: object) -> str:
    """Format a value of a description as text, whatever its shape: without braces."""
    if isinstance(value, Mapping):
        value = ", ".join(f"{key}: {_format_value(one)}" for key, one in value.items())
    elif isinstance(value, list):
        value = ", ".join(map(_format_value, value))
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return escape(text[:TEXT_MAX])


def make_elsewhere_page(site: Site) -> Iterator[tuple[str, str]]:
    """Make one page of numbers from the literature, apart from results that were checked."""
    yield ELSEWHERE, render(site, "elsewhere.html", ELSEWHERE, sets=load_sets())


def make_decisions_page(site: Site) -> Iterator[tuple[str, str]]:
    """Make the page of what organisers decided: statuses, decisions, dates, later changes."""
    if not site.has_decisions:
        return
    judged_in = rounds.load(site.round)
    decided = dict.fromkeys(one for e in site.entries for one in list_decisions(e.judged.who))
    lines = sorted(map(describe_decision, decided), key=lambda o: (o.on, o.path), reverse=True)
    context = {
        "judged_in": judged_in,
        "header": HEADER,
        "statuses": list(list_statuses(site.entries, judged_in)),
        "decisions": lines,
        "dates": [(str(day), what) for day, what in list_dates(judged_in)],
    }
    yield DECISIONS, render(site, "decisions.html", DECISIONS, **context)


def make_glossary_page(site: Site) -> Iterator[tuple[str, str]]:
    """Make one page of words, metrics and rules; each rule has its id as the place on it."""
    terms = sorted(load_terms().values(), key=lambda term: term.name.casefold())
    rules, meanings = list(read_rules().values()), _collect_meanings(site.entries)
    words = {"terms": terms, "meanings": meanings, "rules": rules}
    yield GLOSSARY, render(site, "glossary.html", GLOSSARY, **words)


def _collect_meanings(entries: Sequence[Entry]) -> list[tuple[str, str, str]]:
    """Return metric, meaning and benchmarks, for the metrics of all results."""
    benchmarks: dict[tuple[str, str], dict[str, None]] = {}
    for entry in entries:
        meanings: Mapping[str, str] = entry.definition.meanings if entry.definition else {}
        for key in meanings.items():
            benchmarks.setdefault(key, {})[entry.names.benchmark] = None
    return [(*key, ", ".join(names)) for key, names in sorted(benchmarks.items())]


def make_copies(site: Site) -> Iterator[tuple[str, bytes]]:
    """Yield each copied file, then the page that lists the copies of its folder with digests."""
    for folder in site.evidence.folders:
        digests = {}
        for file in folder.files:
            if not file.why_not:
                content = file.read()
                digests[file.name] = hashlib.sha256(content).hexdigest()
                yield file.copy, content
        lines = [(f, site.link(folder.page, f.path), digests.get(f.name)) for f in folder.files]
        text = render(site, "files.html", folder.page, folder=folder, lines=lines)
        yield folder.page, text.encode("utf-8", "backslashreplace")


def make_feed(site: Site) -> Iterator[tuple[str, str]]:
    """Make a feed, Atom, of what changed since the publication: an entry for each day."""
    if site.changes:
        yield FEED, load_templates().get_template("changes.xml").render(site=site) + "\n"


def make_history_page(site: Site) -> Iterator[tuple[str, str]]:
    """Make one page, if there are earlier rounds."""
    if not site.rounds:
        return
    labels = [one.label for one in site.rounds]
    sections = []
    for line in site.bests.values():
        name, title = make_slug("-".join(filter(None, line.group))), describe_group(*line.group)
        cells = [(step, format_value(line.kind, step.value)) for step in line.steps]
        plot = _plot_line(line, f"history-{name}", title, labels)
        sections.append({"name": name, "title": title, "cells": cells, "plot": plot})
    context = {
        "sections": sections,
        "labels": labels,
        "pages": {entry.id: entry.page for entry in site.entries},
        "changed": [(e, site.since[e.id]) for e in site.entries if e.id in site.since],
        "gone": sorted(site.rounds[-2].results.keys() - site.rounds[-1].results.keys()),
    }
    yield HISTORY, render(site, "history.html", HISTORY, **context)


def _plot_line(line: Line, name: str, title: str, labels: Sequence[str]) -> Plot | None:
    """Plot the best result of each round, a series for each stretch of comparable rounds."""
    series = []
    for part in range(line.steps[-1].part + 1):
        steps = [step for step in line.steps if step.part == part]
        first, last = steps[0].round, steps[-1].round
        points = tuple((labels.index(step.round) + 1.0, step.value) for step in steps)
        label = first if first == last else f"{first} to {last}"
        series.append(Series(label, points, part, ends=tuple(step.ends for step in steps)))
    numbers = {float(number): label[:24] for number, label in enumerate(labels, 1)}
    return make_plot(
        name,
        f"Best result over the rounds: {title}",
        Axis("round", False, values=tuple(numbers), show=lambda value: numbers.get(value, "")),
        Axis(line.kind.unit_name, is_log=True),
        series,
        note="The best result of each round with its 95% interval"
        + ("." if len(series) == 1 else f". {_explain_parts(line)}"),
    )


def _explain_parts(line: Line) -> str:
    """Say why the rounds fall into several stretches, each in a colour of its own."""
    verdicts = {step.change.verdict for step in line.steps if step.change}
    reasons = {
        "other definition": "the definition of the benchmark has changed",
        "unknown": "an index does not say what a comparison needs",
    }
    told = [text for verdict, text in reasons.items() if verdict in verdicts]
    return f"Rounds of different colours are not comparable: {', or '.join(told)}."


def make_compare_page(site: Site) -> Iterator[tuple[str, str]]:
    """Make the page, whose address names the results to compare after #."""
    scored = [entry for entry in site.entries if entry.level is not None]
    results = [_describe_compared(site, entry) for entry in scored]
    data = {"student": list_quantiles(), "results": results}
    yield COMPARE, render(site, "compare.html", COMPARE, data=data, number=len(scored))


def make_details(site: Site, entries: Sequence[Entry]) -> Iterator[tuple[str, str]]:
    """Make the scripts that hold the details of those of some results that have a score."""
    for entry in (entry for entry in entries if entry.level is not None):
        content = json.dumps(_describe_details(entry), separators=(",", ":"))
        yield f"results/{entry.id}.js", f"addDetails({json.dumps(entry.id)},{content});\n"


def _describe_compared(site: Site, entry: Entry) -> dict[str, Any]:
    hardware, colour = entry.hardware, site.devices[entry.hardware.device]
    cell = make_score_cell(entry)
    return {
        "id": entry.id,
        "name": entry.name,
        "group": ", ".join(filter(None, (entry.names.benchmark, entry.names.scale))),
        "division": entry.names.division,
        "hardware": str(hardware),
        "framework": hardware.framework,
        "batch": entry.batch_size,
        "score": cell.text if entry.is_scored else f"{cell.text} (time, no score)",
        "colour": colour,
        "shape": get_shape(colour),
        "level": describe_level(entry.level),
    }


def _describe_details(entry: Entry) -> dict[str, Any]:
    targets = describe_targets(entry.definition)
    names = [target["metric"] for target in targets]
    longest = max((len(run.course.curve) for run in entry.runs), default=0)
    every = max(1, -(-longest // POINTS_COMPARED_MAX))
    return {
        "facts": {name: text[:TEXT_COMPARED_MAX] for name, text in list_facts(entry.judged.system)},
        "hyperparameters": {
            name: "" if value is None else escape(str(value))
            for name, value in collect_hyperparameters(entry.runs).items()
        },
        "targets": targets,
        "runs": [describe_curve(run, names, every) for run in entry.runs],
    }
