"""Leaderboard rows: one for each result, as CSV, JSON, Markdown or a plain table.

A row has a number only where nothing stands against it: a rejected result shows its reasons, one
with too few runs its count. Results are ranked only within one benchmark, scale and division (T22).
"""

import csv
import io
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from compliance.checks.convergence import convergence_of
from compliance.convergence import Convergence
from compliance.finding import Finding, printable
from compliance.judge import JudgedResult, Judgement
from compliance.score import Provisional, Score, score
from rules import rcp
from rules.definition import Definition

Verdict = Literal["scored", "provisional", "rejected"]

TABLE_WIDTH = 100  # columns of a terminal
_ORDER: Mapping[str, int] = {"scored": 0, "provisional": 1, "rejected": 2}


@dataclass(frozen=True)
class Row:
    """One result of a table. Times are in minutes.

    ``score_minutes`` and its 95% interval are None unless the verdict is ``scored``. ``reasons``
    are the errors, then the warnings, each of those once.
    ``samples_to_target`` is the median over the converged runs, ``quality`` holds the metrics of
    the last evaluation, each the median over those runs; both are empty for a rejected result.
    ``rcp_verdict`` and ``rcp_factor`` compare the samples with the reference's (rule T21); the
    score knows nothing of them. The verdict is empty where the rule does not ask.
    """

    submitter: str
    system: str
    division: str
    benchmark: str
    scale: str
    accelerators: int
    accelerator: str
    processor: str
    nodes: int
    framework: str
    runs: int
    required: int
    converged: int
    score_minutes: float | None
    score_low: float | None
    score_high: float | None
    provisional_minutes: float | None
    samples_to_target: float | None
    rcp_verdict: str
    rcp_factor: float | None
    quality: Mapping[str, float]
    verdict: Verdict
    reasons: tuple[str, ...]
    findings: tuple[Finding, ...]
    provisional_targets: str
    judged: JudgedResult

    @property
    def group(self) -> tuple[str, str, str]:
        """What results are ranked within."""
        return self.benchmark, self.scale, self.division

    @property
    def hardware(self) -> str:
        """The accelerators, or the processor where there are none: ``8 x NVIDIA H200``."""
        if self.accelerators and self.accelerator:
            return f"{self.accelerators} x {self.accelerator}"
        return self.processor or "unknown"

    @property
    def standing(self) -> str:
        """What stands in place of a score, or an empty string: ``provisional: 1 of 5 runs``."""
        if self.verdict == "provisional":
            return f"provisional: {self.runs} of {self.required} runs"
        if self.verdict == "rejected":
            rules = dict.fromkeys(finding.rule for finding in self.findings if finding.is_error)
            count = sum(finding.is_error for finding in self.findings)
            return f"rejected: {count} error{'' if count == 1 else 's'} ({', '.join(rules)})"
        return ""


def rows(judgement: Judgement) -> list[Row]:
    """One row for each result, group by group, the fastest first."""
    made = [_row(result) for result in judgement.results]
    return sorted(
        made,
        key=lambda row: (
            row.group,
            _ORDER[row.verdict],
            row.score_minutes or 0.0,
            row.submitter,
            row.system,
        ),
    )


def groups(table: Iterable[Row]) -> dict[tuple[str, str, str], list[Row]]:
    """The rows of each benchmark, scale and division, in their order."""
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in table:
        found.setdefault(row.group, []).append(row)
    return found


def _row(result: JudgedResult) -> Row:
    definition, runs = result.definition, result.folder.runs
    scored = score(runs, definition, result.findings) if definition and runs else None
    number = scored if isinstance(scored, Score) else None
    so_far = scored.minutes_so_far if isinstance(scored, Provisional) else None
    errors = tuple(finding for finding in result.findings if finding.is_error)
    verdict: Verdict = "scored" if number else "rejected" if errors else "provisional"
    samples, quality = _course(result) if verdict != "rejected" else (None, {})
    compared = _compared(result)
    names = _names(result)
    system = result.system
    return Row(
        **names,
        accelerators=_count(system, "accelerators_per_node") * max(1, _count(system, "nodes")),
        accelerator=_text(system, "accelerator"),
        processor=_text(system, "processor"),
        nodes=_count(system, "nodes"),
        framework=_text(system, "framework"),
        runs=len(runs),
        required=definition.runs.required if definition else 0,
        converged=sum(run.converged for run in runs),
        score_minutes=number.minutes if number else None,
        score_low=number.low if number else None,
        score_high=number.high if number else None,
        provisional_minutes=so_far,
        samples_to_target=samples,
        rcp_verdict=compared.verdict if compared else "",
        rcp_factor=compared.factor if compared and verdict != "rejected" else None,
        quality=quality,
        verdict=verdict,
        reasons=tuple(finding.headline for finding in errors)
        + tuple(dict.fromkeys(f.headline for f in result.findings if f.severity == "warning")),
        findings=result.findings,
        provisional_targets=(definition.provisional or "") if definition else "",
        judged=result,
    )


def _names(result: JudgedResult) -> dict[str, str]:
    """Who, what and where: as the folders say, else as the first log says."""
    place, first = result.place, result.folder.runs[0] if result.folder.runs else None

    def named(by_folder: str | None, key: str) -> str:
        text = by_folder or (first.text(key) if first else None) or "unknown"
        return printable(text[:64])

    return {
        "submitter": named(place.submitter, "submission_org"),
        "system": named(place.system, "submission_platform"),
        "benchmark": named(place.benchmark, "submission_benchmark"),
        "scale": named(place.scale, "submission_scale"),
        "division": named(place.division, "submission_division"),
    }


def _course(result: JudgedResult) -> tuple[float | None, dict[str, float]]:
    """Samples to target and final quality, each the median over the converged runs."""
    converged = [run for run in result.folder.runs if run.converged and run.quality_curve]
    if not converged or result.definition is None:
        return None, {}
    samples = [count for run in converged if (count := run.samples_to_target) is not None]
    last = [run.quality_curve[-1].metrics for run in converged]
    metrics = _metrics_of(result.definition)
    return statistics.median(samples), {
        name: statistics.median(found[name] for found in last)
        for name in metrics
        if all(name in found for found in last)
    }


def _compared(result: JudgedResult) -> Convergence | None:
    """The samples to target against the reference's."""
    definition = result.definition
    if definition is None or not result.folder.runs:
        return None
    points = rcp.load(definition.name, definition.scale)
    return convergence_of(result.folder, definition, result.place, points)


def _metrics_of(definition: Definition) -> list[str]:
    return [target.metric for target in definition.quality] + list(definition.reported)


def _text(system: Mapping[str, object], key: str) -> str:
    value = system.get(key)
    return printable(value[:200]) if isinstance(value, str) else ""


def _count(system: Mapping[str, object], key: str) -> int:
    value = system.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


COLUMNS = (
    "submitter", "system", "division", "benchmark", "scale", "nodes", "accelerators", "accelerator",
    "processor", "framework", "runs", "required", "converged", "score_minutes", "score_low",
    "score_high", "provisional_minutes", "samples_to_target",
    "rcp_verdict", "rcp_factor", "verdict", "provisional_targets",
)  # fmt: skip


def as_json(table: Sequence[Row]) -> str:
    """A list with one object for each row; null where there is no number."""
    return json.dumps([_object(row) for row in table], indent=2)


def _object(row: Row) -> dict[str, Any]:
    return {
        **{name: getattr(row, name) for name in COLUMNS},
        "quality": dict(row.quality),
        "reasons": list(row.reasons),
        "findings": [finding.as_json() for finding in row.findings],
    }


def as_csv(table: Sequence[Row]) -> str:
    """One line for each row, the reasons in one column; empty where there is no number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, "quality", "reasons"])
    for row in table:
        values = [getattr(row, name) for name in COLUMNS]
        quality = " ".join(f"{name}={value!r}" for name, value in row.quality.items())
        cells = ["" if value is None else value for value in values]
        writer.writerow([_inert(cell) for cell in (*cells, quality, "; ".join(row.reasons))])
    return text.getvalue().rstrip("\n")


def _inert(cell: object) -> object:
    """A cell that no spreadsheet takes for a formula: names come from whoever wrote the log."""
    is_formula = isinstance(cell, str) and cell.startswith(("=", "+", "-", "@"))
    return f"'{cell}" if is_formula else cell


def as_table(table: Sequence[Row]) -> str:
    """A plain table for each group, at most 100 columns wide."""
    from tabulate import tabulate

    if not table:
        return "no results"
    parts = []
    for group, members in groups(table).items():
        body = [_cells(row, rank) for row, rank in _ranked(members)]
        header = _header(members)
        body = [cells[: len(header)] for cells in body]
        wide = tabulate(body, header, tablefmt="simple", disable_numparse=True)
        excess = max(map(len, wide.splitlines())) - TABLE_WIDTH
        if excess > 0:  # the two columns of free text give way
            body = _shortened(body, excess)
            wide = tabulate(body, header, tablefmt="simple", disable_numparse=True)
        parts.append("\n".join([_title(group, members), "", wide, *_below(members)]))
    return "\n\n".join(parts)


_HEADER = ("", "system", "hardware", "runs", "converged", "minutes", "95% interval", "samples")


def _header(members: Sequence[Row]) -> tuple[str, ...]:
    """The columns of a table; the last one only where something is compared."""
    return (*_HEADER, "RCP") if any(map(rcp_cell, members)) else _HEADER


def rcp_cell(row: Row) -> str:
    """The verdict of rule T21 and the factor, e.g. ``pass 1.02``.

    Empty where nothing was compared, or something stands against the result.
    """
    if row.verdict == "rejected" or row.rcp_verdict in ("", "not measured"):
        return ""
    return row.rcp_verdict + (f" {row.rcp_factor:.2f}" if row.rcp_factor else "")


def _title(group: tuple[str, str, str], members: Sequence[Row]) -> str:
    provisional = ", provisional targets" if members[0].provisional_targets else ""
    benchmark, scale, division = group
    return f"{benchmark}, {scale} scale, {division} division{provisional}"


def _ranked(members: Sequence[Row]) -> list[tuple[Row, int | None]]:
    scored = [row for row in members if row.verdict == "scored"]
    return [(row, scored.index(row) + 1 if row in scored else None) for row in members]


def _cells(row: Row, rank: int | None) -> list[str]:
    samples = "" if row.samples_to_target is None else f"{row.samples_to_target:,.0f}"
    cells = [str(rank or ""), f"{row.submitter}/{row.system}", row.hardware]
    cells += [f"{row.runs}/{row.required}", str(row.converged)]
    last = [samples, rcp_cell(row)]
    if row.score_minutes is None:
        so_far = row.provisional_minutes
        return [*cells, "" if so_far is None else f"({minutes(so_far)})", "", *last]
    return [*cells, minutes(row.score_minutes), interval(row), *last]


def minutes(value: float) -> str:
    """Minutes to three or four digits."""
    return f"{value:,.1f}" if value >= 100 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def interval(row: Row) -> str:
    """The 95% interval of a score."""
    if row.score_low is None or row.score_high is None:
        return ""
    return f"{minutes(row.score_low)} to {minutes(row.score_high)}"


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
        if not (row.standing or row.reasons):
            continue
        so_far = "" if row.provisional_minutes is None else " (in brackets: the mean so far)"
        standing = f"{row.standing}{so_far}" or "scored, with a warning"
        name = _cut(f"{row.submitter}/{row.system}", TABLE_WIDTH - len(standing) - 4)
        lines.append(f"  {name}: {standing}")
        lines += [_cut(f"    {reason}", TABLE_WIDTH) for reason in row.reasons[:3]]
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
        for row, rank in _ranked(members):
            rest = _cells(row, rank)[3:]
            cells = [str(rank or ""), row.submitter, row.system, row.hardware, *rest]
            if row.standing:
                cells[6] = f"{row.standing} {cells[6]}".strip()
            shown = cells[: len(header)]
            lines.append(f"| {' | '.join(_markdown(cell) for cell in shown)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _markdown(text: str) -> str:
    """Text that Markdown and the HTML in it take literally."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{c}" if c in "\\`*_[]|#" else c for c in escaped)
