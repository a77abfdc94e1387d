"""Reported elsewhere: numbers from the literature, apart from results that were checked."""

from collections.abc import Iterator

from cepheid.leaderboard.site.reported import ReportedSet, load_sets
from cepheid.leaderboard.site.view import Site, render

PAGE = "elsewhere.html"


def make_pages(site: Site) -> Iterator[tuple[str, str]]:
    """Make one page with all sets of reported numbers."""
    yield PAGE, render(site, "elsewhere.html", PAGE, sets=load_sets())


def find_sets_about(benchmark: str) -> list[ReportedSet]:
    """Return the reported sets that are about one of our benchmarks."""
    return [found for found in load_sets() if benchmark in found.about]
