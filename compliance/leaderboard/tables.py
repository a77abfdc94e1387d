"""Rows as tables to read: plain text for a terminal, Markdown."""

import textwrap
from collections.abc import Sequence

from compliance.leaderboard.numbers import (
    energy,
    generation_cells,
    generation_interval,
    interval,
    minutes,
    ranked,
    rcp_cell,
    update_cell,
)
from compliance.leaderboard.row import Row, groups
from rules.generation import METRICS

TABLE_WIDTH = 100  # columns of a terminal
REASON_LINES_MAX = 8  # of one reason below a table

_BEGIN = ("", "system", "hardware", "runs", "converged")
_HEADER = (*_BEGIN, "minutes", "95% interval", "samples")
_GENERATION_HEADER = (*_BEGIN, *(metric.heading for metric in METRICS), "95% interval")
_SELDOM = {"RCP": rcp_cell, "update": update_cell}


def _seldom(members: Sequence[Row]) -> list[str]:
    """The columns that only some tables have something in."""
    return [name for name, cell in _SELDOM.items() if any(map(cell, members))]


def _header(members: Sequence[Row]) -> tuple[str, ...]:
    """The columns of a table."""
    return _GENERATION_HEADER if members[0].generates else (*_HEADER, *_seldom(members))


def as_table(table: Sequence[Row]) -> str:
    """A plain table for each group, at most 100 columns wide, and 104 with updates compared."""
    from tabulate import tabulate

    if not table:
        return "no results"
    parts = []
    for group, members in groups(table).items():
        header = _header(members)
        body = [_cells(row, rank, _seldom(members)) for row, rank in ranked(members)]
        wide = tabulate(body, header, tablefmt="simple", disable_numparse=True)
        excess = max(map(len, wide.splitlines())) - TABLE_WIDTH
        if excess > 0:  # the two columns of free text give way
            body = _shortened(body, excess)
            wide = tabulate(body, header, tablefmt="simple", disable_numparse=True)
        parts.append("\n".join([_title(group, members), "", wide, *_below(members)]))
    return "\n\n".join(parts)


def _title(group: tuple[str, str, str], members: Sequence[Row]) -> str:
    provisional = ", provisional targets" if members[0].provisional_targets else ""
    benchmark, scale, division = group
    return ", ".join(
        filter(None, (benchmark, scale and f"{scale} scale", f"{division} division{provisional}"))
    )


def _cells(row: Row, rank: int | None, seldom: Sequence[str]) -> list[str]:
    samples = "" if row.samples_to_target is None else f"{row.samples_to_target:,.0f}"
    if row.epochs_to_target is not None:
        samples = f"{row.epochs_to_target:,g} epochs"
    cells = [str(rank or ""), f"{row.submitter}/{row.system}", row.hardware]
    cells += [f"{row.runs}/{row.required}", str(row.converged)]
    if row.generates:
        return [*cells, *generation_cells(row), generation_interval(row)]
    last = [samples, *(_SELDOM[name](row) for name in seldom)]
    if row.score_minutes is None:
        so_far = row.provisional_minutes
        return [*cells, "" if so_far is None else f"({minutes(so_far)})", "", *last]
    return [*cells, minutes(row.score_minutes), interval(row), *last]


def _shortened(body: list[list[str]], excess: int) -> list[list[str]]:
    """Cut hardware, then system names, until ``excess`` columns are saved."""
    for column, least in ((2, 10), (1, 20)):
        longest = max(len(cells[column]) for cells in body)
        width = max(least, longest - excess)
        excess -= max(0, longest - width)
        for cells in body:
            cells[column] = _cut(cells[column], width)
        if excess <= 0:
            break
    return body


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _below(members: Sequence[Row]) -> list[str]:
    """What the table has no room for: why a row has no score, and warnings."""
    lines = []
    for row in members:
        slow = row.runs - row.converged
        if row.judged.judged_in.is_history and row.score_minutes is not None and slow:
            runs = "1 run did" if slow == 1 else f"{slow} runs did"
            lines.append(f"  {row.submitter}/{row.system}: {runs} not converge: the slowest")
        if row.energy_joules is not None:
            lines.append(_cut(f"  {row.submitter}/{row.system}: {energy(row)}", TABLE_WIDTH))
        if not (row.standing or row.reasons):
            continue
        so_far = "" if row.provisional_minutes is None else " (in brackets: the mean so far)"
        standing = f"{row.standing}{so_far}" or f"{row.verdict}, with a warning"
        name = _cut(f"{row.submitter}/{row.system}", TABLE_WIDTH - len(standing) - 4)
        lines.append(f"  {name}: {standing}")
        for reason in row.reasons[:3]:
            lines += textwrap.wrap(
                reason, TABLE_WIDTH, initial_indent="    ", subsequent_indent="      ",
                max_lines=REASON_LINES_MAX, placeholder=" …",
            )  # fmt: skip
        if len(row.reasons) > 3:
            lines.append(f"    and {len(row.reasons) - 3} more: `cepheid check` lists them")
    return ["", *lines] if lines else []


def as_markdown(table: Sequence[Row]) -> str:
    """A Markdown table for each group, with a heading."""
    parts = []
    for group, members in groups(table).items():
        lines = [f"## {_markdown(_title(group, members))}", ""]
        header = ("", "submitter", *_header(members)[1:])
        lines.append(f"| {' | '.join(header)} |")
        lines.append("|---" * len(header) + "|")
        for row, rank in ranked(members):
            rest = _cells(row, rank, _seldom(members))[3:]
            cells = [str(rank or ""), row.submitter, row.system, row.hardware, *rest]
            if row.standing:
                cells[6] = f"{row.standing} {cells[6]}".strip()
            lines.append(f"| {' | '.join(_markdown(cell) for cell in cells)} |")
        for row in members:
            said = [energy(row)] if row.energy_joules is not None else []
            said += row.reasons if row.has_score else []  # warnings, waivers
            name = f"{row.submitter}/{row.system}"
            lines += ["", *(f"- {_markdown(f'{name}: {text}')}" for text in said)] if said else []
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _markdown(text: str) -> str:
    """Text that Markdown and the HTML in it take literally."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{c}" if c in "\\`*_[]|#" else c for c in escaped)
