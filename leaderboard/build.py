"""The leaderboard as a static site that works from a disk and from any web server.

A page is made from frozen data and a template; ``make_site_files`` yields all files one by one,
those of a large site from several processes. These are forked, so they have the site already: only
numbers of parts and finished files are sent. The same results give the same bytes: nothing here
reads a clock.
"""

import json
import multiprocessing
import sys
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

from cepheid.leaderboard.pages import benchmark_page, lists, result_page, round_page
from cepheid.leaderboard.rows import index
from cepheid.leaderboard.rows.data import write_csv
from cepheid.leaderboard.site.records import write_index
from cepheid.leaderboard.site.view import Site
from cepheid.rules.host import follow_parent, release_memory, usable_processors

GENERATOR = "cepheid leaderboard"  # what every page says of itself
FILE_LIST = "files.txt"  # everything that was written, so that nothing else is ever replaced

STATIC = Path(__file__).parent / "static"
RESULTS_OF_PART = 20

RESULTS_FOR_PROCESSES = 200  # pages of fewer are made sooner than processes are started

File = tuple[str, bytes]
Make = Callable[[Site], Iterable[tuple[str, str]]]
MakePart = Callable[[int], list[File]]
_OF_RESULTS = (result_page.make_pages, lists.make_details)


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
        return [(n, t.encode("utf-8", "backslashreplace")) for n, t in parts[number](site)]

    yield from make_parts(make, len(parts), processes)
    yield from lists.make_copies(site)
    for entry in site.entries:
        if entry.picture is not None:
            yield str(Path(entry.page).with_suffix("")) + ".png", entry.picture.read_bytes()
    for path in sorted(STATIC.rglob("*.*")):
        yield path.relative_to(STATIC).as_posix(), path.read_bytes()


def _list_parts(site: Site) -> Iterator[Make]:
    """List what can be made by itself in any process, what takes long first."""
    yield from (round_page.make_pages, benchmark_page.make_pages, _make_index)
    yield from (lists.make_system_pages, lists.make_compare_page, lists.make_history_page)
    yield from (lists.make_decisions_page, lists.make_feed)
    yield from (lists.make_elsewhere_page, lists.make_glossary_page)
    for start in range(0, len(site.entries), RESULTS_OF_PART):
        entries = site.entries[start : start + RESULTS_OF_PART]
        for make in _OF_RESULTS:
            yield partial(make, entries=entries)


def _make_index(site: Site) -> Iterator[tuple[str, str]]:
    yield "results.csv", write_csv(site.entries) + "\n"
    yield index.FILE, write_index(site)
    if site.changes:
        yield index.CHANGES_FILE, json.dumps(list(site.changes), indent=1) + "\n"
    yield index.SCHEMA_FILE, index.read_schema() + "\n"


def choose_processes(results: int) -> int:
    """Choose the number of processes for a site of so many results.

    macOS can fork, but its own libraries may then end the process.
    """
    can_fork = "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"
    return usable_processors() if can_fork and results >= RESULTS_FOR_PROCESSES else 1


def make_parts(make: MakePart, parts: int, processes: int) -> Generator[File, None, None]:
    """Yield the files of all parts, those of any part that is ready.

    An exception in a process is raised here, and so is one for a process that was killed. Then, or
    where the caller wants no more, parts that no process has begun are not made.
    """
    if processes == 1:
        for part in range(parts):
            yield from make(part)
        return
    release_memory()  # each process would have it
    fork = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, fork, initializer=_remember, initargs=(make,)) as pool:
        try:
            for made in as_completed([pool.submit(_make_part, part) for part in range(parts)]):
                for name, packed in made.result():
                    yield name, zlib.decompress(packed)
        finally:
            pool.shutdown(cancel_futures=True)


_make: MakePart | None = None  # of a forked process


def _remember(make: MakePart) -> None:
    global _make
    _make = make
    follow_parent()


def _make_part(part: int) -> list[File]:
    assert _make is not None
    return [(name, zlib.compress(content, 1)) for name, content in _make(part)]
