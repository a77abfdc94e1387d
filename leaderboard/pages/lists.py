"""Pages that list: systems, numbers reported elsewhere, the glossary, copied files."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from cepheid.compliance.finding import escape
from cepheid.compliance.report.rulebook import read_rules
from cepheid.leaderboard.rows.entry import Entry, group_entries
from cepheid.leaderboard.rows.statuses import (
    HEADER,
    describe_decision,
    list_dates,
    list_decisions,
    list_statuses,
)
from cepheid.leaderboard.site.evidence import CopiedFolder
from cepheid.leaderboard.site.reported import load_sets
from cepheid.leaderboard.site.view import (
    Site,
    find_half_width,
    load_templates,
    load_terms,
    make_score_cell,
    render,
)
from cepheid.rules import rounds

ELSEWHERE, GLOSSARY, DECISIONS = "elsewhere.html", "glossary.html", "decisions.html"
FEED = "changes.xml"
TEXT_MAX = 2000


def make_system_pages(site: Site) -> Iterator[tuple[str, str]]:
    """Make a page for each submitter's system: its description, its results, their versions."""
    for page, entries in group_entries(site.entries, lambda entry: entry.system_page).items():
        described = next((e.judged.system for e in entries if e.judged.system), {})
        lines = [(entry, make_score_cell(entry, find_half_width([entry]))) for entry in entries]
        facts = list(list_facts(described))
        yield page, render(site, "system.html", page, row=entries[0], facts=facts, lines=lines)


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
    every = {
        decision: describe_decision(decision)
        for entry in site.entries
        for decision in list_decisions(entry.judged.who)
    }
    lines = sorted(every.values(), key=lambda line: (line.on, line.path), reverse=True)
    yield (
        DECISIONS,
        render(
            site,
            "decisions.html",
            DECISIONS,
            judged_in=judged_in,
            header=HEADER,
            statuses=[
                tuple(asdict(one).values()) for one in list_statuses(site.entries, judged_in)
            ],
            decisions=[tuple(asdict(line).values()) for line in lines],
            dates=[(str(day), what) for day, what in list_dates(judged_in)],
            changes=site.changes,
        ),
    )


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
    for folder in site.evidence.list_folders():
        digests = {}
        for file in folder.files:
            if not file.why_not:
                content = file.read()
                digests[file.name] = hashlib.sha256(content).hexdigest()
                yield file.copy, content
        yield folder.page, _render_files(site, folder, digests).encode("utf-8", "backslashreplace")


def _render_files(site: Site, folder: CopiedFolder, digests: Mapping[str, str]) -> str:
    lines = [
        {
            "name": file.name,
            "link": site.link(folder.page, file.path),
            "size": f"{file.size_bytes:,}",
            "digest": digests.get(file.name) or f"not copied: {file.why_not}",
        }
        for file in folder.files
    ]
    return render(site, "files.html", folder.page, folder=folder, lines=lines)


def make_feed(site: Site) -> Iterator[tuple[str, str]]:
    """Make a feed, Atom, of what changed since the publication: an entry for each day."""
    if site.changes:
        yield FEED, load_templates().get_template("changes.xml").render(site=site) + "\n"
