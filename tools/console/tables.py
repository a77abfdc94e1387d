"""Results as people read them: cells, and tables as plain text or Markdown.

Columns that only say of every result what is usual are dropped where a table is too wide.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from cepheid.compliance.score.kinds import GENERATION, MINUTES, Unit, format_number
from cepheid.leaderboard.rows.cells import (
    choose_unit,
    describe_basis,
    describe_parallelism,
    describe_precision,
    format_range,
    format_reference,
    rank_rows,
)
from cepheid.leaderboard.rows.entry import Entry, describe_group, group_entries
from cepheid.rules.layout import count, find_width, lay_out, wrap
from cepheid.rules.metrics import METRICS

REASONS_MAX = 3  # of one entry
KEYS = 2  # columns that a table repeats where others follow below: the rank and the system
PROVISIONAL = "prov."  # in place of a rank
SCORE = 3  # the place of the first number among hardware, runs, converged and numbers
WEAK = "weak"  # the scale of MLPerf HPC that trains many models at once
SYSTEM, HARDWARE, RUNS, CONVERGED = "system", "hardware", "runs", "converged"
SAMPLES, INTERVAL = "samples", "95% interval"

Columns = Mapping[str, Callable[[Entry], str]]


def _format_score(entry: Entry, unit: Unit) -> str:
    is_scored = entry.main is not None and entry.is_scored
    return entry.kind.format(entry.main.mean * unit.factor) if entry.main and is_scored else ""


def _format_metric(entry: Entry, name: str, factor: float = 1) -> str:
    """Format what was measured; the average of a provisional result stands in brackets."""
    score, so_far = entry.standing.score, entry.standing.so_far.get(name)
    found = score.estimates.get(name) if score else None
    if found:
        return entry.kind.format(found.mean * factor)
    return "" if so_far is None else f"({entry.kind.format(so_far * factor)})"


def _format_energy(entry: Entry) -> str:
    """Format the energy of a run: ``1.23 kJ a run, not measured: nothing``; empty without it."""
    if entry.energy is None or entry.kilojoules is None:
        return ""
    missing = f", not measured: {entry.energy.not_measured}" if entry.energy.not_measured else ""
    return f"{format_number(entry.kilojoules)} kJ a run{missing}"


def _format_interval(entry: Entry, unit: Unit | None = None) -> str:
    return format_range(entry, unit or Unit(entry.kind.unit)) if entry.is_scored else ""


def _format_way(entry: Entry) -> str:
    """Format the samples to the target, or the epochs of rounds that count those."""
    samples, epochs = entry.progress.samples, entry.progress.epochs
    if epochs is not None:
        return f"{epochs:,g} epochs"
    return "" if samples is None else f"{samples:,.0f}"


def _show(value: float | None, form: Callable[[float], str]) -> str:
    return "" if value is None else form(value)


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
OF_GENERATION: Columns = {
    **{metric.heading: partial(_format_metric, name=metric.name) for metric in METRICS},
    INTERVAL: _format_interval,
}
SELDOM: Columns = {
    "batch": lambda e: _show(e.batch_size if e.is_of_mlperf else None, "{:,}".format),
    "RCP": format_reference,
    "scaled by": lambda e: "" if (by := e.judged.summary.scaling) == 1 else f"{by:.4g}",
    "energy, kJ": lambda e: _show(e.kilojoules if e.is_of_mlperf else None, format_number),
    "precision": describe_precision,
    "parallelism": describe_parallelism,
    "update": lambda e: _show(e.progress.update_time_ratio, "{:.2f}×".format),
}
"""Columns that only some tables have something in; our own rounds say below what energy lacks."""


def list_columns(members: Sequence[Entry]) -> Columns:
    """List the columns of a table after that of the ranks; the kind of benchmark chooses them."""
    if members[0].kind is GENERATION:
        return {**BEGIN, **OF_GENERATION}
    is_weak, is_of_mlperf = members[0].names.scale == WEAK, members[0].is_of_mlperf
    of_mlperf = OF_WEAK if is_weak else OF_MLPERF
    numbers = of_mlperf if is_weak or is_of_mlperf else _list_training(members)
    seldom = {name: show for name, show in SELDOM.items() if any(map(show, members))}
    return {**BEGIN, **numbers, SAMPLES: _format_way, **seldom}


def _list_training(members: Sequence[Entry]) -> Columns:
    unit = choose_unit(members) or Unit(members[0].kind.unit)
    return {
        f"score, {unit.name}": partial(_format_score, unit=unit),
        INTERVAL: partial(_format_interval, unit=unit),
        f"time, {unit.name}": partial(_format_metric, name=MINUTES, factor=unit.factor),
    }


def _make_rows(members: Sequence[Entry]) -> list[list[str]]:
    """Make a table with its header; a provisional score has a mark in place of its rank."""
    columns = list_columns(members)
    rows = [["", *columns]]
    for entry, rank in rank_rows(members):
        first = str(rank.value) if rank else PROVISIONAL if entry.standing.doubt else ""
        rows.append([first, *(show(entry) for show in columns.values())])
    return rows


def write_table(
    table: Sequence[Entry], width: int | None = None, reasons: int = REASONS_MAX
) -> str:
    """Write a plain table for each group, by default for the terminal, with the first reasons."""
    if not table:
        return "no results"
    width = find_width() if width is None else width
    parts = []
    for members in group_entries(table, lambda entry: entry.group).values():
        rows = _make_rows(members)
        if _measure(rows) > width:
            rows = _drop_columns(rows, members)
        below = [
            line for one in members for line in (*_write_notes(one), *_write_reasons(one, reasons))
        ]
        lines = [wrap(_make_title(members), width), "", *lay_out(rows, width, KEYS)]
        parts.append("\n".join([*lines, *(["", wrap("\n".join(below), width)] if below else [])]))
    return "\n\n".join(parts)


def _measure(rows: Sequence[Sequence[str]]) -> int:
    return sum(2 + max(map(len, column)) for column in zip(*rows, strict=True)) - 2


def _drop_columns(rows: Sequence[list[str]], members: Sequence[Entry]) -> list[list[str]]:
    """Return the rows without columns in which nothing stands, or only what is usual."""
    counts = [entry.counts for entry in members]
    silent = [CONVERGED] if all(each.converged == each.made for each in counts) else []
    silent += [RUNS] if all(each.made == each.required for each in counts) else []
    kept = [
        number for number, (head, *cells) in enumerate(zip(*rows, strict=True))
        if any(cells) and head not in silent
    ]  # fmt: skip
    return [[cells[number] for number in kept] for cells in rows]


def _make_title(members: Sequence[Entry]) -> str:
    provisional = ", provisional targets" if members[0].provisional_targets else ""
    return describe_group(*members[0].group) + provisional


def _write_notes(entry: Entry) -> Iterator[str]:
    """Write what a reader must know of a score: slow runs of published results, and energy."""
    slow = entry.counts.made - entry.counts.converged
    if entry.is_of_mlperf and entry.has_score and slow:
        yield f"  {entry.names}: {count(slow, 'run')} did not converge: the slowest"
    energy = "" if entry.is_of_mlperf else _format_energy(entry)
    for text in filter(None, (describe_basis(entry), energy)):
        yield f"  {entry.names}: {text}"


def _write_reasons(entry: Entry, most: int) -> Iterator[str]:
    """Write the standing of an entry and its first reasons, if there is anything to say."""
    standing = entry.standing
    if not (standing.text or entry.reasons):
        return
    so_far = " (in brackets: the mean so far)" if MINUTES in standing.so_far else ""
    text = f"{standing.text}{so_far}" or f"{standing.verdict}, with a warning"
    yield f"  {entry.names}: {text}"
    yield from (f"    {reason}" for reason in entry.reasons[:most])
    if most and len(entry.reasons) > most:
        more = len(entry.reasons) - most
        yield f"    and {more} more: `cepheid check` lists them"


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
