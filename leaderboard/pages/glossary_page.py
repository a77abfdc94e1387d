"""The glossary: the words of the pages, the metrics of the benchmarks, and every numbered rule."""

from collections.abc import Iterator, Mapping

from cepheid.compliance.report.rulebook import read_rules
from cepheid.leaderboard.site.glossary import PAGE, list_terms
from cepheid.leaderboard.site.view import Site, render


def make_pages(site: Site) -> Iterator[tuple[str, str]]:
    """Make one page; each rule has its id as the place on it."""
    yield (
        PAGE,
        render(
            site,
            "glossary.html",
            PAGE,
            terms=list_terms(),
            meanings=_collect_meanings(site),
            rules=list(read_rules().values()),
        ),
    )


def _collect_meanings(site: Site) -> list[tuple[str, str, str]]:
    """Return metric, meaning and benchmarks, for the metrics of all results."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for entry in site.entries:
        meanings: Mapping[str, str] = entry.definition.meanings if entry.definition else {}
        for metric, meaning in meanings.items():
            found.setdefault((metric, meaning), {})[entry.row.names.benchmark] = None
    return [(metric, text, ", ".join(names)) for (metric, text), names in sorted(found.items())]
