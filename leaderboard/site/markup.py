"""Markup that pages hold by the thousand: a template takes ten times as long for each cell.

Every text is escaped, as a template does.
"""

import re
from collections.abc import Iterable, Sequence
from html import escape as escape_markup
from typing import TYPE_CHECKING

from cepheid.compliance.finding import escape
from cepheid.compliance.read.summary import Span

if TYPE_CHECKING:  # not part of the core
    from markupsafe import Markup

_MARKUP = re.compile("[&<>\"']")


def write_text(value: object) -> str:
    """Write a value as text of a page: no markup, no control characters."""
    text = escape(str(value))
    return escape_markup(text) if _MARKUP.search(text) else text


def mark(markup: str) -> "Markup":
    """Return text whose markup templates leave as it is."""
    from markupsafe import Markup

    return Markup(markup)


def soften(name: object) -> "Markup":
    """Write a name that may break after each mark between words, and nowhere inside a word."""
    return mark(re.sub(r"([_./-])(?=[^_./-])", r"\1<wbr>", write_text(name)))


_PAPER = re.compile(
    r"\b(?:doi:(10\.[0-9]{4,9}/[\w.-]*\w)|arXiv:([0-9]{4}\.[0-9]{4,5}))\b", re.ASCII
)


def write_links(source: str) -> "Markup":
    """Write a source as text in which identifiers of papers are links."""

    def link(found: re.Match[str]) -> str:
        doi, number = found.groups()
        address = f"doi.org/{doi}" if doi else f"arxiv.org/abs/{number}"
        return f'<a href="https://{address}" rel="noreferrer">{found[0]}</a>'

    return mark(_PAPER.sub(link, write_text(source)))


def write_rows(rows: Iterable[Sequence[str]]) -> "Markup":
    """Write the rows of a plain table. Most hold numbers, so a row is looked at as a whole."""
    return mark("\n".join(f"<tr><td>{_write_cells(row)}</td></tr>" for row in rows))


def _write_cells(row: Sequence[str]) -> str:
    text = "".join(row)
    is_plain = text.isprintable() and not _MARKUP.search(text)
    return "</td><td>".join(row if is_plain else map(write_text, row))


def write_spans(spans: Iterable[tuple[int, Span]]) -> "Markup":
    """Write the rows of the table beneath a time line."""
    return mark(
        "\n".join(
            f"<tr><td>{number}</td><td>{write_text(span.kind)}</td><td>{write_text(span.note)}</td>"
            f'<td class="number">{span.start_seconds:.3f}</td>'
            f'<td class="number">{span.stop_seconds:.3f}</td></tr>'
            for number, span in spans
        )
    )


def write_bar(kind: str, title: str, x: float, y: float, width: float) -> "Markup":
    """Write a bar of a time line."""
    return mark(
        f'<rect class="{write_text(kind)}" x="{x}" y="{y}" width="{width}" height="17">'
        f"<title>{write_text(title)}</title></rect>"
    )
