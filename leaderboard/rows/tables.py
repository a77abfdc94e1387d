"""Results as people read them: cells, and tables as plain text or Markdown.

Columns that only say of every result what is usual are dropped where a table is too wide.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from cepheid.compliance.score.comparison import Rank, rank_levels
from cepheid.compliance.score.kinds import GENERATION, MINUTES, Unit, format_number
from cepheid.leaderboard.rows.cells import (
    choose_unit,
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
from cepheid.rules.layout import find_width, lay_out, wrap
from cepheid.rules.metrics import METRICS


def rank_rows(members: Sequence[Entry]) -> list[tuple[Entry, Rank | None]]:
    """Return each entry with its rank among those with a score, or None; the fastest are first."""
    levels = [entry.level for entry in members if entry.is_ranked and entry.level is not None]
    ranks = iter(rank_levels(levels))
    return [
        (entry, next(ranks) if entry.is_ranked and entry.level is not None else None)
        for entry in members
    ]


REASONS_MAX = 3  # of one entry
PROVISIONAL = "prov."  # in place of a rank

RUNS, CONVERGED, SAMPLES = "runs", "converged", "samples"
_BEGIN = ("", "system", "hardware", RUNS, CONVERGED)
KEYS = 2  # of these: the rank and the system


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
    unit = _choose_unit(members).name
    head = (f"score, {unit}", "95% interval", f"time, {unit}", SAMPLES)
    return (*_BEGIN, *head, *_list_seldom(members))


def _choose_unit(members: Sequence[Entry]) -> Unit:
    """Choose the unit of a table; MLPerf publishes minutes."""
    kind = members[0].kind
    chosen = None if members[0].round_kind.has_verdicts else choose_unit(members)
    return chosen or Unit(kind.unit)


def _make_cells(entry: Entry, rank: Rank | None, members: Sequence[Entry]) -> list[str]:
    cells = [_format_rank(entry, rank), str(entry.names), str(entry.hardware)]
    cells += [str(entry.counts), str(entry.counts.converged)]
    if entry.kind is GENERATION:
        return [*cells, *format_generation(entry), format_interval(entry, Unit(entry.kind.unit))]
    samples, epochs = entry.progress.samples, entry.progress.epochs
    way = "" if samples is None else f"{samples:,.0f}"
    way = way if epochs is None else f"{epochs:,g} epochs"
    seldom = (SELDOM[name](entry) for name in _list_seldom(members))
    if entry.names.scale == WEAK:
        return [*cells, *_format_weak(entry), way, *seldom]
    unit = _choose_unit(members)
    interval = format_interval(entry, unit)
    if entry.round_kind.has_verdicts:
        return [*cells, format_time(entry, unit), interval, way, *seldom]
    interval = interval if entry.is_scored else ""
    return [*cells, format_score(entry, unit), interval, format_time(entry, unit), way, *seldom]


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
    """Write a plain table for each group, by default for the terminal."""
    if not table:
        return "no results"
    width = find_width() if width is None else width
    parts = []
    for group, members in group_entries(table, lambda entry: entry.group).items():
        rows = [list(_make_header(members))]
        rows += [_make_cells(entry, rank, members) for entry, rank in rank_rows(members)]
        if _measure(rows) > width:
            rows = _drop_columns(rows, members)
        below = [
            line for entry in members for line in (*_write_notes(entry), *_write_reasons(entry))
        ]
        title, notes = wrap(_make_title(group, members), width), wrap("\n".join(below), width)
        lines = [title, "", *lay_out(rows, width, KEYS), *(["", notes] if below else [])]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _measure(rows: Sequence[Sequence[str]]) -> int:
    """Return the characters of a line, with two between the columns."""
    return sum(2 + max(map(len, column)) for column in zip(*rows, strict=True)) - 2


def _drop_columns(rows: Sequence[list[str]], members: Sequence[Entry]) -> list[list[str]]:
    """Return the rows without columns in which nothing stands, or only what is usual."""
    silent = set(_list_silent(members))
    kept = [
        number for number, (head, *cells) in enumerate(zip(*rows, strict=True))
        if any(cells) and head not in silent
    ]  # fmt: skip
    return [[cells[number] for number in kept] for cells in rows]


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


def _write_notes(entry: Entry) -> Iterator[str]:
    """Write what a reader must know of a score: slow runs of published results, and energy."""
    slow = entry.counts.made - entry.counts.converged
    if entry.round_kind.has_verdicts and entry.has_score and slow:
        runs = "1 run did" if slow == 1 else f"{slow} runs did"
        yield f"  {entry.names}: {runs} not converge: the slowest"
    if text := describe_basis(entry):
        yield f"  {entry.names}: {text}"
    energy = "" if entry.round_kind.has_verdicts else format_energy(entry)
    if energy:
        yield f"  {entry.names}: {energy}"


def _write_reasons(entry: Entry) -> Iterator[str]:
    """Write the standing of an entry and its first reasons, if there is anything to say."""
    standing = entry.standing
    if not (standing.text or entry.reasons):
        return
    so_far = " (in brackets: the mean so far)" if MINUTES in standing.so_far else ""
    text = f"{standing.text}{so_far}" or f"{standing.verdict}, with a warning"
    yield f"  {entry.names}: {text}"
    yield from (f"    {reason}" for reason in entry.reasons[:REASONS_MAX])
    if len(entry.reasons) > REASONS_MAX:
        more = len(entry.reasons) - REASONS_MAX
        yield f"    and {more} more: `cepheid check` lists them"


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
