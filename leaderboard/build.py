"""The leaderboard as a static site that works from a disk and from any web server.

A module for each kind of page makes it from frozen data and a template; ``make_site_files`` yields
all files one by one, of a large site from several processes. The same results give the same bytes:
nothing here reads a clock.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from cepheid.leaderboard.pages import (
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
from cepheid.leaderboard.rows import index, write_csv
from cepheid.leaderboard.rows.entry import Entry
from cepheid.leaderboard.site.forked import File, choose_processes, make_parts
from cepheid.leaderboard.site.records import write_index
from cepheid.leaderboard.site.view import Site

GENERATOR = "cepheid leaderboard"  # what every page says of itself
FILE_LIST = "files.txt"  # everything that was written, so that nothing else is ever replaced

STATIC = Path(__file__).parent / "static"
RESULTS_OF_PART = 20

Make = Callable[[Site], Iterable[tuple[str, str]]]
_OF_RESULTS = (result_page.make_pages, compare_page.make_details)


def make_site_files(site: Site, processes: int | None = None) -> Iterator[File]:
    """Yield every file of the site, its name and content, with ``files.txt`` last.

    None chooses the number of processes by the number of results.
    """
    names = [FILE_LIST]
    for name, content in _write_files(site, processes or choose_processes(len(site.entries))):
        names.append(name)
        yield name, content
    yield FILE_LIST, "".join(f"{name}\n" for name in sorted(names)).encode()


def _write_files(site: Site, processes: int) -> Iterator[File]:
    parts = list(_list_parts(site))

    def make(number: int) -> list[File]:
        return [(name, _encode(text)) for name, text in parts[number](site)]

    yield from make_parts(make, len(parts), processes)
    yield from files_page.make_files(site)
    yield from _read_pictures(site.entries)
    for name in ("site.css", "site.js", "costs.js", "compare.js"):
        yield name, (STATIC / name).read_bytes()


def _list_parts(site: Site) -> Iterator[Make]:
    """List what can be made by itself in any process, what takes long first."""
    yield round_page.make_pages
    yield benchmark_page.make_pages
    yield _make_index
    for kind in (system_page, compare_page, history_page, elsewhere_page, glossary_page):
        yield kind.make_pages
    for start in range(0, len(site.entries), RESULTS_OF_PART):
        entries = site.entries[start : start + RESULTS_OF_PART]
        for make in _OF_RESULTS:
            yield partial(make, entries=entries)


def _make_index(site: Site) -> Iterator[tuple[str, str]]:
    yield "results.csv", write_csv([entry.row for entry in site.entries]) + "\n"
    yield index.FILE, write_index(site) + "\n"
    yield index.SCHEMA_FILE, index.read_schema() + "\n"


def _read_pictures(found: Sequence[Entry]) -> Iterator[tuple[str, bytes]]:
    for entry in found:
        if entry.picture is not None:
            yield str(Path(entry.page).with_suffix("")) + ".png", entry.picture.read_bytes()


def _encode(text: str) -> bytes:
    return text.encode("utf-8", errors="backslashreplace")
