"""Reported elsewhere: numbers from the literature, set apart from results that were checked."""

from collections.abc import Iterator

from compliance.site.reported import ReportedSet, load_sets
from compliance.site.view import Site, render

PAGE = "elsewhere.html"


def pages(site: Site) -> Iterator[tuple[str, str]]:
    """One page."""
    yield PAGE, render(site, "elsewhere.html", PAGE, sets=load_sets())


def sets_about(benchmark: str) -> list[ReportedSet]:
    """What is reported about a benchmark of ours."""
    return [found for found in load_sets() if benchmark in found.about]
