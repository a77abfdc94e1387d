"""Tables of text that fit a terminal: what says nothing is dropped, what is long loses its middle.

A width is a number of characters; None is that of a pipe or a file, in which nothing is cut.
"""

from collections.abc import Iterable, Iterator, Sequence

GAP = "  "  # between two columns
LEAST = 10  # characters of a text that is cut
ELLIPSIS = "…"


def lay_out(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table, a header and at least one row, with a rule below the header."""
    widths = _measure_columns(rows)
    header, *body = rows
    return [
        GAP.join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
        for cells in (header, ["-" * width for width in widths], *body)
    ]


def measure(rows: Sequence[Sequence[str]]) -> int:
    """Return the characters of the longest line that the table could have."""
    widths = _measure_columns(rows)
    return sum(widths) + len(GAP) * (len(widths) - 1)


def drop_columns(rows: Sequence[Sequence[str]], columns: Iterable[int]) -> list[list[str]]:
    """Return the table without some columns."""
    left_out = set(columns)
    return [[cell for column, cell in enumerate(cells) if column not in left_out] for cells in rows]


def list_empty_columns(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the columns that have nothing in any row."""
    return [column for column, (_, *cells) in enumerate(zip(*rows, strict=True)) if not any(cells)]


def cut(text: str, width: int, head: int | None = None) -> str:
    """Return a text of at most ``width`` characters, whose middle is left out.

    ``head`` characters stay before the ellipsis, half of them by default.
    """
    if len(text) <= width:
        return text
    kept = max(0, width - len(ELLIPSIS))
    head = (kept + 1) // 2 if head is None else head
    return text[:head] + ELLIPSIS + text[len(text) - (kept - head) :]


def shorten_names(names: Sequence[str], width: int) -> list[str]:
    """Cut names to ``width`` characters, or to the fewest with which different ones still differ.

    All lose the same part: the middle, or what is nearest to it where the middle tells them apart.
    """
    different = set(names)
    longest = max(map(len, names))
    for room in range(max(width, LEAST), longest):
        for head in _list_heads(room - len(ELLIPSIS)):
            if len({cut(name, room, head) for name in different}) == len(different):
                return [cut(name, room, head) for name in names]
    return list(names)


def _measure_columns(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _list_heads(kept: int) -> Iterator[int]:
    """Yield how many of the kept characters can stand before the ellipsis, half of them first."""
    middle = (kept + 1) // 2
    return iter(sorted(range(kept + 1), key=lambda head: abs(head - middle)))
