"""Markup that pages hold by the thousand, written at once.

A template takes ten times as long for each cell. Every text is escaped here, as a template does.
"""

from collections.abc import Iterable
from html import escape as escape_markup

from markupsafe import Markup

from compliance.finding import escape
from compliance.read.log.course import Span


def write_text(value: object) -> str:
    """Write a value as text of a page: no markup, no control characters."""
    return escape_markup(escape(str(value)))


def write_cells(row: Iterable[object]) -> Markup:
    """Write the cells of a row of a plain table."""
    return Markup("".join(f"<td>{write_text(value)}</td>" for value in row))


def write_spans(spans: Iterable[tuple[int, Span]]) -> Markup:
    """Write the rows of the table beneath a time line."""
    return Markup(
        "\n".join(
            f"<tr><td>{number}</td><td>{write_text(span.kind)}</td><td>{write_text(span.note)}</td>"
            f'<td class="number">{span.start_seconds:.3f}</td>'
            f'<td class="number">{span.stop_seconds:.3f}</td></tr>'
            for number, span in spans
        )
    )


def write_bar(kind: str, title: str, x: float, y: float, width: float) -> Markup:
    """Write a bar of a time line."""
    return Markup(
        f'<rect class="{write_text(kind)}" x="{x}" y="{y}" width="{width}" height="17">'
        f"<title>{write_text(title)}</title></rect>"
    )
