"""The leaderboard as a static site that works from a disk and from any web server.

A module for each kind of page makes it from frozen data and a template; ``build`` yields all files
one by one. The same results give the same bytes: nothing here reads a clock.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from compliance.leaderboard import write_csv
from compliance.site import index
from compliance.site.entry import Entry, list_entries
from compliance.site.pages import (
    benchmark_page,
    compare_page,
    elsewhere_page,
    files_page,
    glossary_page,
    history_page,
    result_page,
    round_page,
    system_page,
)
from compliance.site.view import HERE, Site

__all__ = ["FILE_LIST", "GENERATOR", "Entry", "Site", "build", "list_entries"]

GENERATOR = "cepheid leaderboard"  # what every page says of itself
FILE_LIST = "files.txt"  # everything that was written, so that nothing else is ever replaced

_PAGES = (
    round_page,
    benchmark_page,
    system_page,
    result_page,
    compare_page,
    history_page,
    elsewhere_page,
    glossary_page,
)


def build(site: Site) -> Iterator[tuple[str, bytes]]:
    """Yield every file of the site, its name and content, with ``files.txt`` last."""
    names = [FILE_LIST]
    for name, content in _write_files(site):
        names.append(name)
        yield name, content
    yield FILE_LIST, "".join(f"{name}\n" for name in sorted(names)).encode()


def _write_files(site: Site) -> Iterator[tuple[str, bytes]]:
    for kind in _PAGES:
        for name, text in kind.make_pages(site):
            yield name, _encode(text)
    yield from files_page.make_files(site)
    yield from _read_pictures(site.entries)
    for name in ("site.css", "site.js", "costs.js", "compare.js"):
        yield name, (HERE / "static" / name).read_bytes()
    yield "results.csv", _encode(write_csv([entry.row for entry in site.entries]) + "\n")
    yield index.FILE, _encode(index.write_index(site) + "\n")
    yield index.SCHEMA_FILE, _encode(index.read_schema() + "\n")


def _read_pictures(found: Sequence[Entry]) -> Iterator[tuple[str, bytes]]:
    for entry in found:
        if entry.picture is not None:
            yield str(Path(entry.page).with_suffix("")) + ".png", entry.picture.read_bytes()


def _encode(text: str) -> bytes:
    return text.encode("utf-8", errors="backslashreplace")
