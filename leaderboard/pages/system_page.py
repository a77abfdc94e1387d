"""A system: its description, all its results, the versions they were made with."""

import json
from collections.abc import Iterator, Mapping, Sequence

from cepheid.compliance.finding import escape
from cepheid.leaderboard.rows.entry import Entry, name_entry
from cepheid.leaderboard.site.view import Site, find_half_width, make_score_cell, render

TEXT_MAX = 2000


def make_pages(site: Site) -> Iterator[tuple[str, str]]:
    """Make a page for each submitter's system."""
    found: dict[str, list[Entry]] = {}
    for entry in site.entries:
        found.setdefault(entry.system_page, []).append(entry)
    for page, entries in found.items():
        yield page, _render_page(site, page, entries)


def _render_page(site: Site, page: str, entries: Sequence[Entry]) -> str:
    described = next((entry.system for entry in entries if entry.system), {})
    return render(
        site,
        "system.html",
        page,
        row=entries[0].row,
        facts=list(list_facts(described)),
        lines=[
            (entry, name_entry(entry), make_score_cell(entry, find_half_width([entry])))
            for entry in entries
        ],
    )


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
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return escape(text[:TEXT_MAX])
