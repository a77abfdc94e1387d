"""Rows as tables to read: plain text for a terminal, Markdown."""

import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence

from cepheid.compliance.score.kinds import GENERATION, MINUTES, TRAINING, BenchmarkKind
from cepheid.compliance.score.ranking import Rank
from cepheid.leaderboard.rows.layout import (
    LEAST,
    cut,
    drop_columns,
    lay_out,
    list_empty_columns,
    measure,
    shorten_names,
)
from cepheid.leaderboard.rows.numbers import (
    format_energy,
    format_generation,
    format_interval,
    format_reference,
    format_score,
    format_update,
    rank_rows,
)
from cepheid.leaderboard.rows.row import Row, group_rows
from cepheid.rules.generation import METRICS

REASON_LINES_MAX = 8  # of one reason below a table, in a terminal
REASONS_MAX = 3  # of one row
WRAP_LEAST = 20  # characters of a line that is wrapped

SYSTEM, HARDWARE, RUNS, CONVERGED = "system", "hardware", "runs", "converged"
_BEGIN = ("", SYSTEM, HARDWARE, RUNS, CONVERGED)


class Columns(ABC):
    """The columns of a table that depend on the kind of its benchmark."""

    @abstractmethod
    def header(self, members: Sequence[Row]) -> tuple[str, ...]:
        """Name the columns."""

    @abstractmethod
    def cells(self, row: Row, members: Sequence[Row]) -> list[str]:
        """Return the cells of one of the rows."""


class _TrainingColumns(Columns):
    """Minutes, the way to the target, and what only some tables have something in."""

    seldom: Mapping[str, Callable[[Row], str]] = {"RCP": format_reference, "update": format_update}

    def header(self, members: Sequence[Row]) -> tuple[str, ...]:
        return ("minutes", "95% interval", "samples", *self._used(members))

    def cells(self, row: Row, members: Sequence[Row]) -> list[str]:
        samples, epochs = row.progress.samples, row.progress.epochs
        way = "" if samples is None else f"{samples:,.0f}"
        way = way if epochs is None else f"{epochs:,g} epochs"
        seldom = (self.seldom[name](row) for name in self._used(members))
        return [format_score(row), format_interval(row), way, *seldom]

    def _used(self, members: Sequence[Row]) -> Iterator[str]:
        return (name for name, format_cell in self.seldom.items() if any(map(format_cell, members)))


class _GenerationColumns(Columns):
    """The scores of rule T26 and the interval of the one that ranks results."""

    def header(self, members: Sequence[Row]) -> tuple[str, ...]:
        return (*(metric.heading for metric in METRICS), "95% interval")

    def cells(self, row: Row, members: Sequence[Row]) -> list[str]:
        return [*format_generation(row), format_interval(row)]


COLUMNS: Mapping[BenchmarkKind, Columns] = {
    TRAINING: _TrainingColumns(),
    GENERATION: _GenerationColumns(),
}


def _make_header(members: Sequence[Row]) -> tuple[str, ...]:
    return (*_BEGIN, *COLUMNS[members[0].kind].header(members))


def write_table(table: Sequence[Row], width: int | None = None) -> str:
    """Write a plain table for each group, for a terminal of ``width`` characters.

    None is for a pipe or a file, in which nothing is cut.
    """
    if not table:
        return "no results"
    parts = []
    for group, members in group_rows(table).items():
        rows = [list(_make_header(members))]
        rows += [_make_cells(row, rank, members) for row, rank in rank_rows(members)]
        if width is not None:
            rows = _fit(rows, members, width)
        title = _wrap(_make_title(group, members), width, "")
        parts.append("\n".join([*title, "", *lay_out(rows), *_write_below(members, width)]))
    return "\n\n".join(parts)


def _fit(rows: list[list[str]], members: Sequence[Row], width: int) -> list[list[str]]:
    """Drop columns that say nothing, then cut hardware, then names, as far as ``width`` asks."""
    if measure(rows) > width:
        rows = drop_columns(rows, list_empty_columns(rows))
    for name in _list_silent(members):
        if measure(rows) > width:
            rows = drop_columns(rows, [rows[0].index(name)])
    for name in (HARDWARE, SYSTEM):
        excess = measure(rows) - width
        if excess > 0:
            column = rows[0].index(name)
            texts = [cells[column] for cells in rows[1:]]
            room = max(map(len, texts)) - excess
            short = (
                shorten_names(texts, room)
                if name == SYSTEM
                else [cut(text, max(room, LEAST)) for text in texts]
            )
            for cells, text in zip(rows[1:], short, strict=True):
                cells[column] = text
    return rows


def _list_silent(members: Sequence[Row]) -> Iterator[str]:
    """Yield the columns that only say of every row what is usual: that nothing is missing."""
    counts = [row.runs for row in members]
    if all(each.converged == each.made for each in counts):
        yield CONVERGED
    if all(each.made == each.required for each in counts):
        yield RUNS


def _make_title(group: tuple[str, str, str], members: Sequence[Row]) -> str:
    provisional = ", provisional targets" if members[0].provisional_targets else ""
    benchmark, scale, division = group
    return ", ".join(
        filter(None, (benchmark, scale and f"{scale} scale", f"{division} division{provisional}"))
    )


def _make_cells(row: Row, rank: Rank | None, members: Sequence[Row]) -> list[str]:
    begin = [str(rank.value) if rank else "", str(row.names), str(row.hardware)]
    begin += [str(row.runs), str(row.runs.converged)]
    return begin + COLUMNS[row.kind].cells(row, members)


def _write_below(members: Sequence[Row], width: int | None) -> list[str]:
    """Write what the table has no room for: why a row has no score, and warnings."""
    lines = [
        line for row in members for line in (*_write_notes(row, width), *_write_reasons(row, width))
    ]
    return ["", *lines] if lines else []


def _write_notes(row: Row, width: int | None) -> Iterator[str]:
    """Write what a reader must know of a score: slow runs of published results, and energy."""
    slow = row.runs.made - row.runs.converged
    if row.round_kind.has_verdicts and row.has_score and slow:
        runs = "1 run did" if slow == 1 else f"{slow} runs did"
        yield from _wrap(f"{row.names}: {runs} not converge: the slowest", width)
    if energy := format_energy(row):
        yield from _wrap(f"{row.names}: {energy}", width)


def _write_reasons(row: Row, width: int | None) -> Iterator[str]:
    """Write the standing of a row and its first reasons, if there is anything to say."""
    standing = row.standing
    if not (standing.text or row.reasons):
        return
    so_far = " (in brackets: the mean so far)" if MINUTES in standing.so_far else ""
    text = f"{standing.text}{so_far}" or f"{standing.verdict}, with a warning"
    yield from _wrap(f"{row.names}: {text}", width)
    for reason in row.reasons[:REASONS_MAX]:
        yield from _wrap(reason, width, "    ", REASON_LINES_MAX)
    if len(row.reasons) > REASONS_MAX:
        more = len(row.reasons) - REASONS_MAX
        yield from _wrap(f"and {more} more: `cepheid check` lists them", width, "    ")


def _wrap(
    text: str, width: int | None, indent: str = "  ", lines_max: int | None = None
) -> list[str]:
    """Return indented lines for a terminal, of which only ``lines_max`` are kept; else one line."""
    if width is None:
        return [indent + text]
    return textwrap.wrap(
        text, max(width, WRAP_LEAST), initial_indent=indent, subsequent_indent=f"{indent}  ",
        max_lines=lines_max, placeholder=" …",
    )  # fmt: skip


def write_markdown(table: Sequence[Row]) -> str:
    """Write a Markdown table for each group, with a heading."""
    parts = []
    for group, members in group_rows(table).items():
        lines = [f"## {_escape(_make_title(group, members))}", ""]
        header = ("", "submitter", *_make_header(members)[1:])
        lines.append(f"| {' | '.join(header)} |")
        lines.append("|---" * len(header) + "|")
        for row, rank in rank_rows(members):
            cells = _make_markdown_cells(row, rank, members)
            lines.append(f"| {' | '.join(map(_escape, cells))} |")
        for row in members:
            notes = _list_notes(row)
            lines += (
                ["", *(f"- {_escape(f'{row.names}: {note}')}" for note in notes)] if notes else []
            )
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _make_markdown_cells(row: Row, rank: Rank | None, members: Sequence[Row]) -> list[str]:
    rest = _make_cells(row, rank, members)[3:]
    cells = [
        str(rank.value) if rank else "",
        row.names.submitter,
        row.names.system,
        str(row.hardware),
        *rest,
    ]
    if row.standing.text:
        cells[6] = f"{row.standing.text} {cells[6]}".strip()
    return cells


def _list_notes(row: Row) -> list[str]:
    """List energy, and the warnings and waivers beside a score."""
    energy = format_energy(row)
    return [*([energy] if energy else []), *(row.reasons if row.has_score else ())]


def _escape(text: str) -> str:
    """Escape text so that Markdown and the HTML in it take it literally."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{c}" if c in "\\`*_[]|#" else c for c in escaped)
