"""Results as people read them: cells, and tables as plain text for a terminal or Markdown.

In a terminal, columns that say nothing are dropped, and long names lose their middle. A width is a
number of characters; None is that of a pipe or a file, in which nothing is cut.
"""

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from cepheid.compliance.score.comparison import Rank, rank_levels
from cepheid.compliance.score.kinds import GENERATION, MINUTES, format_number
from cepheid.leaderboard.rows.cells import (
    describe_basis,
    describe_parallelism,
    describe_precision,
    find_batch,
    format_energy,
    format_generation,
    format_interval,
    format_reference,
    format_score,
    format_time,
    format_update,
)
from cepheid.leaderboard.rows.entry import Entry, group_entries
from cepheid.rules.metrics import METRICS


def rank_rows(members: Sequence[Entry]) -> list[tuple[Entry, Rank | None]]:
    """Return each entry with its rank among those with a score, or None; the fastest are first."""
    levels = [entry.level for entry in members if entry.is_ranked and entry.level is not None]
    ranks = iter(rank_levels(levels))
    return [
        (entry, next(ranks) if entry.is_ranked and entry.level is not None else None)
        for entry in members
    ]


REASON_LINES_MAX = 8  # of one reason below a table, in a terminal
REASONS_MAX = 3  # of one entry
WRAP_LEAST = 20  # characters of a line that is wrapped
GAP = "  "  # between two columns
LEAST = 10  # characters of a text that is cut
ELLIPSIS = "…"
PROVISIONAL = "prov."  # in place of a rank

SYSTEM, HARDWARE, RUNS, CONVERGED = "system", "hardware", "runs", "converged"
SAMPLES = "samples"
_BEGIN = ("", SYSTEM, HARDWARE, RUNS, CONVERGED)


def _format_scaling(entry: Entry) -> str:
    """Format what mlcommons multiplied the time by; empty where that is 1."""
    factor = entry.judged.summary.scaling
    return "" if factor == 1 else f"{factor:.4g}"


def _format_batch(entry: Entry) -> str:
    """Format the global batch size, in rounds of MLPerf."""
    batch = find_batch(entry) if entry.round_kind.has_verdicts else None
    return "" if batch is None else f"{batch:,}"


def _format_kilojoules(entry: Entry) -> str:
    """Format the energy of a run in rounds of MLPerf; our own say below what was not measured."""
    known = entry.kilojoules if entry.round_kind.has_verdicts else None
    return "" if known is None else format_number(known)


SELDOM: Mapping[str, Callable[[Entry], str]] = {
    "batch": _format_batch,
    "RCP": format_reference,
    "scaled by": _format_scaling,
    "energy, kJ": _format_kilojoules,
    "precision": describe_precision,
    "parallelism": describe_parallelism,
    "update": format_update,
}
"""Columns that only some tables have something in."""


def _make_header(members: Sequence[Entry]) -> tuple[str, ...]:
    """Name the columns; those of the score depend on the kind of the benchmark."""
    if members[0].kind is GENERATION:
        return (*_BEGIN, *(metric.heading for metric in METRICS), "95% interval")
    if members[0].names.scale == WEAK:
        return (*_BEGIN, "models/min", "models", "minutes", "size", SAMPLES, *_list_seldom(members))
    if members[0].round_kind.has_verdicts:  # of MLPerf, where the score is the time to train
        return (*_BEGIN, "minutes", "95% interval", SAMPLES, *_list_seldom(members))
    return (
        *_BEGIN, "score, min", "95% interval", "time, min", SAMPLES, *_list_seldom(members)
    )  # fmt: skip


def _make_cells(entry: Entry, rank: Rank | None, members: Sequence[Entry]) -> list[str]:
    cells = [_format_rank(entry, rank), str(entry.names), str(entry.hardware)]
    cells += [str(entry.counts), str(entry.counts.converged)]
    if entry.kind is GENERATION:
        return [*cells, *format_generation(entry), format_interval(entry)]
    samples, epochs = entry.progress.samples, entry.progress.epochs
    way = "" if samples is None else f"{samples:,.0f}"
    way = way if epochs is None else f"{epochs:,g} epochs"
    seldom = (SELDOM[name](entry) for name in _list_seldom(members))
    if entry.names.scale == WEAK:
        return [*cells, *_format_weak(entry), way, *seldom]
    if entry.round_kind.has_verdicts:
        return [*cells, format_time(entry), format_interval(entry), way, *seldom]
    interval = format_interval(entry) if entry.is_scored else ""
    return [*cells, format_score(entry), interval, format_time(entry), way, *seldom]


WEAK = "weak"  # the scale of MLPerf HPC that trains many models at once


def _format_weak(entry: Entry) -> list[str]:
    """Format models per minute, how many there were, the minutes, and the devices of each."""
    weak = entry.standing.weak
    if weak is None:
        return [""] * 4
    numbers = weak.models_per_minute, weak.models, weak.minutes
    return [*map(format_number, numbers), str(weak.instance_scale or "")]


def _format_rank(entry: Entry, rank: Rank | None) -> str:
    """Format the rank; a provisional score has a mark in its place."""
    return str(rank.value) if rank else PROVISIONAL if entry.standing.doubt else ""


def _list_seldom(members: Sequence[Entry]) -> list[str]:
    return [name for name, format_cell in SELDOM.items() if any(map(format_cell, members))]


def write_table(table: Sequence[Entry], width: int | None = None) -> str:
    """Write a plain table for each group, for a terminal of ``width`` characters.

    None is for a pipe or a file, in which nothing is cut.
    """
    if not table:
        return "no results"
    parts = []
    for group, members in group_entries(table, lambda entry: entry.group).items():
        rows = [list(_make_header(members))]
        rows += [_make_cells(entry, rank, members) for entry, rank in rank_rows(members)]
        if width is not None:
            rows = _fit(rows, members, width)
        title = _wrap(_make_title(group, members), width, "")
        parts.append("\n".join([*title, "", *lay_out(rows), *_write_below(members, width)]))
    return "\n\n".join(parts)


def _fit(rows: list[list[str]], members: Sequence[Entry], width: int) -> list[list[str]]:
    """Drop columns that say nothing, cut hardware and names, and drop the samples.

    Each only as far as ``width`` asks.
    """
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
    if measure(rows) > width and SAMPLES in rows[0]:
        rows = drop_columns(rows, [rows[0].index(SAMPLES)])
    return rows


def _list_silent(members: Sequence[Entry]) -> Iterator[str]:
    """Yield the columns that only say of every entry what is usual: that nothing is missing."""
    counts = [entry.counts for entry in members]
    if all(each.converged == each.made for each in counts):
        yield CONVERGED
    if all(each.made == each.required for each in counts):
        yield RUNS


def _make_title(group: tuple[str, str, str], members: Sequence[Entry]) -> str:
    provisional = ", provisional targets" if members[0].provisional_targets else ""
    benchmark, scale, division = group
    return ", ".join(
        filter(None, (benchmark, scale and f"{scale} scale", f"{division} division{provisional}"))
    )


def _write_below(members: Sequence[Entry], width: int | None) -> list[str]:
    """Write what the table has no room for: why a result has no score, and warnings."""
    lines = [
        line
        for entry in members
        for line in (*_write_notes(entry, width), *_write_reasons(entry, width))
    ]
    return ["", *lines] if lines else []


def _write_notes(entry: Entry, width: int | None) -> Iterator[str]:
    """Write what a reader must know of a score: slow runs of published results, and energy."""
    slow = entry.counts.made - entry.counts.converged
    if entry.round_kind.has_verdicts and entry.has_score and slow:
        runs = "1 run did" if slow == 1 else f"{slow} runs did"
        yield from _wrap(f"{entry.names}: {runs} not converge: the slowest", width)
    if text := describe_basis(entry):
        yield from _wrap(f"{entry.names}: {text}", width)
    energy = "" if entry.round_kind.has_verdicts else format_energy(entry)
    if energy:
        yield from _wrap(f"{entry.names}: {energy}", width)


def _write_reasons(entry: Entry, width: int | None) -> Iterator[str]:
    """Write the standing of a entry and its first reasons, if there is anything to say."""
    standing = entry.standing
    if not (standing.text or entry.reasons):
        return
    so_far = " (in brackets: the mean so far)" if MINUTES in standing.so_far else ""
    text = f"{standing.text}{so_far}" or f"{standing.verdict}, with a warning"
    yield from _wrap(f"{entry.names}: {text}", width)
    for reason in entry.reasons[:REASONS_MAX]:
        yield from _wrap(reason, width, "    ", REASON_LINES_MAX)
    if len(entry.reasons) > REASONS_MAX:
        more = len(entry.reasons) - REASONS_MAX
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


def write_markdown(table: Sequence[Entry]) -> str:
    """Write a Markdown table for each group, with a heading."""
    parts = []
    for group, members in group_entries(table, lambda entry: entry.group).items():
        lines = [f"## {_escape(_make_title(group, members))}", ""]
        header = ("", "submitter", *_make_header(members)[1:])
        lines.append(f"| {' | '.join(header)} |")
        lines.append("|---" * len(header) + "|")
        for entry, rank in rank_rows(members):
            cells = _make_markdown_cells(entry, rank, members)
            lines.append(f"| {' | '.join(map(_escape, cells))} |")
        for entry in members:
            notes = _list_notes(entry)
            lines += (
                ["", *(f"- {_escape(f'{entry.names}: {note}')}" for note in notes)] if notes else []
            )
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _make_markdown_cells(entry: Entry, rank: Rank | None, members: Sequence[Entry]) -> list[str]:
    rest = _make_cells(entry, rank, members)[3:]
    cells = [
        _format_rank(entry, rank),
        entry.names.submitter,
        entry.names.system,
        str(entry.hardware),
        *rest,
    ]
    if entry.standing.text and not entry.standing.doubt:
        cells[6] = f"{entry.standing.text} {cells[6]}".strip()
    return cells


def _list_notes(entry: Entry) -> list[str]:
    """List why a score has no rank, what it rests on, energy, warnings and waivers."""
    why = entry.standing.text if entry.standing.doubt else ""
    said = filter(None, (why, describe_basis(entry), format_energy(entry)))
    return [*said, *(entry.reasons if entry.has_score else ())]


def _escape(text: str) -> str:
    """Escape text so that Markdown and the HTML in it take it literally."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{c}" if c in "\\`*_[]|#" else c for c in escaped)


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
