"""Results as people read them: cells, and tables as plain text for a terminal or Markdown.

In a terminal, columns that say nothing are dropped, and long names lose their middle. A width is a
number of characters; None is that of a pipe or a file, in which nothing is cut.
"""

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from cepheid.compliance.score.kinds import GENERATION, MINUTES, Unit, format_number
from cepheid.leaderboard.rows.cells import (
    count,
    describe_basis,
    describe_parallelism,
    describe_precision,
    format_range,
    format_reference,
    rank_rows,
)
from cepheid.leaderboard.rows.entry import Entry, describe_group, group_entries
from cepheid.rules.metrics import METRICS

REASON_LINES_MAX = 8  # of one reason below a table, in a terminal
REASONS_MAX = 3  # of one entry
WRAP_LEAST = 20  # characters of a line that is wrapped
GAP = "  "  # between two columns
LEAST = 10  # characters of a text that is cut
ELLIPSIS = "…"
PROVISIONAL = "prov."  # in place of a rank
SCORE = 3  # the place of the first number among hardware, runs, converged and numbers
WEAK = "weak"  # the scale of MLPerf HPC that trains many models at once
SYSTEM, HARDWARE, RUNS, CONVERGED = "system", "hardware", "runs", "converged"
SAMPLES, INTERVAL = "samples", "95% interval"

Columns = Mapping[str, Callable[[Entry], str]]


def _format_score(entry: Entry) -> str:
    """Format the score, empty for a result that has a time only."""
    return entry.kind.format(entry.main.mean) if entry.main and entry.is_scored else ""


def _format_metric(entry: Entry, name: str) -> str:
    """Format what was measured; the average of a provisional result stands in brackets."""
    score, so_far = entry.standing.score, entry.standing.so_far.get(name)
    found = score.estimates.get(name) if score else None
    show = entry.kind.format
    return show(found.mean) if found else "" if so_far is None else f"({show(so_far)})"


def _format_energy(entry: Entry) -> str:
    """Format the energy of a run: ``1.23 kJ a run, not measured: nothing``; empty without it."""
    if entry.energy is None or entry.kilojoules is None:
        return ""
    missing = f", not measured: {entry.energy.not_measured}" if entry.energy.not_measured else ""
    return f"{format_number(entry.kilojoules)} kJ a run{missing}"


def _format_interval(entry: Entry) -> str:
    return format_range(entry, Unit(entry.kind.unit)) if entry.is_scored else ""


def _format_way(entry: Entry) -> str:
    """Format the samples to the target, or the epochs of rounds that count those."""
    samples, epochs = entry.progress.samples, entry.progress.epochs
    if epochs is not None:
        return f"{epochs:,g} epochs"
    return "" if samples is None else f"{samples:,.0f}"


def _format_scaling(entry: Entry) -> str:
    """Format what mlcommons multiplied the time by; empty where that is 1."""
    factor = entry.judged.summary.scaling
    return "" if factor == 1 else f"{factor:.4g}"


def _format_batch(entry: Entry) -> str:
    """Format the global batch size, in rounds of MLPerf."""
    return f"{entry.batch_size:,}" if entry.is_of_mlperf and entry.batch_size is not None else ""


def _format_kilojoules(entry: Entry) -> str:
    """Format the energy of a run in rounds of MLPerf; our own say below what was not measured."""
    known = entry.kilojoules if entry.is_of_mlperf else None
    return "" if known is None else format_number(known)


def _format_update(entry: Entry) -> str:
    """Format how many times as long as a plain update one takes, where that was measured."""
    ratio = entry.progress.update_time_ratio
    return "" if ratio is None else f"{ratio:.2f}×"


def _format_weak(entry: Entry, place: int) -> str:
    """Format models per minute, how many there were, the minutes, or the devices of each."""
    weak = entry.standing.weak
    if weak is None:
        return ""
    numbers = weak.models_per_minute, weak.models, weak.minutes
    return format_number(numbers[place]) if place < len(numbers) else str(weak.instance_scale or "")


BEGIN: Columns = {
    SYSTEM: lambda entry: str(entry.names),
    HARDWARE: lambda entry: str(entry.hardware),
    RUNS: lambda entry: str(entry.counts),
    CONVERGED: lambda entry: str(entry.counts.converged),
}
OF_WEAK: Columns = {
    name: partial(_format_weak, place=place)
    for place, name in enumerate(("models/min", "models", "minutes", "size"))
}
OF_MLPERF: Columns = {
    "minutes": partial(_format_metric, name=MINUTES), INTERVAL: _format_interval
}  # fmt: skip
OF_TRAINING: Columns = {
    "score, min": _format_score, INTERVAL: _format_interval,
    "time, min": partial(_format_metric, name=MINUTES),
}  # fmt: skip
OF_GENERATION: Columns = {
    **{metric.heading: partial(_format_metric, name=metric.name) for metric in METRICS},
    INTERVAL: _format_interval,
}
SELDOM: Columns = {
    "batch": _format_batch, "RCP": format_reference, "scaled by": _format_scaling,
    "energy, kJ": _format_kilojoules, "precision": describe_precision,
    "parallelism": describe_parallelism, "update": _format_update,
}  # fmt: skip
"""Columns that only some tables have something in."""


def list_columns(members: Sequence[Entry]) -> Columns:
    """List the columns of a table after that of the ranks; the kind of benchmark chooses them."""
    if members[0].kind is GENERATION:
        return {**BEGIN, **OF_GENERATION}
    is_weak, is_of_mlperf = members[0].names.scale == WEAK, members[0].is_of_mlperf
    numbers = OF_WEAK if is_weak else OF_MLPERF if is_of_mlperf else OF_TRAINING
    seldom = {name: show for name, show in SELDOM.items() if any(map(show, members))}
    return {**BEGIN, **numbers, SAMPLES: _format_way, **seldom}


def _make_rows(members: Sequence[Entry]) -> list[list[str]]:
    """Make a table with its header; a provisional score has a mark in place of its rank."""
    columns = list_columns(members)
    rows = [["", *columns]]
    for entry, rank in rank_rows(members):
        first = str(rank.value) if rank else PROVISIONAL if entry.standing.doubt else ""
        rows.append([first, *(show(entry) for show in columns.values())])
    return rows


def write_table(table: Sequence[Entry], width: int | None = None) -> str:
    """Write a plain table for each group, for a terminal of ``width`` characters.

    None is for a pipe or a file, in which nothing is cut.
    """
    if not table:
        return "no results"
    parts = []
    for members in group_entries(table, lambda entry: entry.group).values():
        rows = _make_rows(members)
        if width is not None:
            rows = _fit(rows, members, width)
        title = _wrap(_make_title(members), width, "")
        parts.append("\n".join([*title, "", *lay_out(rows), *_write_below(members, width)]))
    return "\n\n".join(parts)


def _fit(rows: list[list[str]], members: Sequence[Entry], width: int) -> list[list[str]]:
    """Drop columns that say nothing, cut hardware and names, and drop the samples.

    Each only as far as ``width`` asks.
    """
    empty = [name for name, *cells in zip(*rows, strict=True) if not any(cells)]
    counts = [entry.counts for entry in members]  # which may only say that nothing is missing
    converged = [CONVERGED] if all(each.converged == each.made for each in counts) else []
    runs = [RUNS] if all(each.made == each.required for each in counts) else []
    for names in (empty, converged, runs):
        if measure(rows) > width:
            rows = drop_columns(rows, names)
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
    return drop_columns(rows, [SAMPLES]) if measure(rows) > width else rows


def _make_title(members: Sequence[Entry]) -> str:
    provisional = ", provisional targets" if members[0].provisional_targets else ""
    return describe_group(*members[0].group) + provisional


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
    if entry.is_of_mlperf and entry.has_score and slow:
        yield from _wrap(
            f"{entry.names}: {count(slow, 'run')} did not converge: the slowest", width
        )
    energy = "" if entry.is_of_mlperf else _format_energy(entry)
    for text in filter(None, (describe_basis(entry), energy)):
        yield from _wrap(f"{entry.names}: {text}", width)


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
    for members in group_entries(table, lambda entry: entry.group).values():
        (rank, _, *header), *rows = _make_rows(members)
        lines = [f"## {_escape(_make_title(members))}", ""]
        lines.append(f"| {' | '.join((rank, 'submitter', SYSTEM, *header))} |")
        lines.append("|---" * (len(header) + 3) + "|")
        for entry, (rank, _, *cells) in zip(members, rows, strict=True):
            if entry.standing.text and not entry.standing.doubt:
                cells[SCORE] = f"{entry.standing.text} {cells[SCORE]}".strip()
            shown = map(_escape, (rank, entry.names.submitter, entry.names.system, *cells))
            lines.append(f"| {' | '.join(shown)} |")
        for entry in members:
            notes = [f"- {_escape(f'{entry.names}: {note}')}" for note in _list_notes(entry)]
            lines += ["", *notes] if notes else []
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _list_notes(entry: Entry) -> list[str]:
    """List why a score has no rank, what it rests on, energy, warnings and waivers."""
    why = entry.standing.text if entry.standing.doubt else ""
    said = filter(None, (why, describe_basis(entry), _format_energy(entry)))
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


def drop_columns(rows: Sequence[Sequence[str]], names: Sequence[str]) -> list[list[str]]:
    """Return the table without the columns of some names."""
    kept = [column for column, name in enumerate(rows[0]) if name not in names]
    return [[cells[column] for column in kept] for cells in rows]


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
