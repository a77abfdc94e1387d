"""Leaderboard rows: one for each result, as CSV, JSON, Markdown or a plain table.

A row has a number only where nothing stands against it: a rejected result shows its reasons, one
with too few runs its count. Results are ranked only within one benchmark, scale and division (T22).
"""

import csv
import io
import json
import math
import re
import statistics
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from compliance.checks.convergence import convergence_of
from compliance.convergence import Convergence
from compliance.finding import Finding, printable
from compliance.judge import JudgedResult, Judgement
from compliance.runlog import RunLog
from compliance.score import (
    Estimate,
    GenerationScore,
    Provisional,
    Rejected,
    Score,
    energy_joules,
    historical_score,
    score,
)
from rules import rcp
from rules.definition import Definition
from rules.events import CHOICES, is_integer
from rules.generation import METRICS

Verdict = Literal["scored", "provisional", "rejected", "pass", "fail"]

ORIGINS = CHOICES["origin"]
RANKED_BY = METRICS[-1].name  # where a benchmark generates
TABLE_WIDTH = 100  # columns of a terminal
REASON_LINES_MAX = 8  # of one reason below a table
_ORDER: Mapping[str, int] = {"scored": 0, "pass": 0, "fail": 0, "provisional": 1, "rejected": 2}


@dataclass(frozen=True)
class Row:
    """One result of a table. Times are in minutes.

    In a round of MLPerf the verdict is ``pass`` or ``fail``, and the score stands beside it.
    ``score_minutes`` and its 95% interval are None unless the verdict is ``scored``. ``reasons``
    are the errors, then the warnings, each once, with the number of files that it is about.
    ``samples_to_target`` is the median over the converged runs, ``quality`` holds the metrics of
    the last evaluation, each the median over those runs; both are empty for a rejected result.
    Where the benchmark generates, ``generation`` has the scores of rule T26 in place of minutes.
    ``rcp_verdict`` and ``rcp_factor`` compare the samples with the reference's (rule T21); the
    score knows nothing of them. The verdict is empty where the rule does not ask.
    """

    submitter: str
    system: str
    division: str
    benchmark: str
    scale: str | None
    accelerators: int | None
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
    epochs_to_target: float | None
    rcp_verdict: str
    rcp_factor: float | None
    quality: Mapping[str, float]
    verdict: Verdict
    reasons: tuple[str, ...]
    findings: tuple[Finding, ...]
    provisional_targets: str
    judged: JudgedResult
    energy_joules: float | None = None  # of one run (rule T23), with a score only
    not_measured: str = ""  # what the power logs leave out
    seeds: str = ""  # "derived" where all are, so that none was chosen (rule T15)
    generation: Mapping[str, Estimate] = field(default_factory=dict)
    provisional_generation: Mapping[str, float] = field(default_factory=dict)

    @property
    def group(self) -> tuple[str, str, str]:
        """What results are ranked within."""
        return self.benchmark, self.scale or "", self.division

    @property
    def hardware(self) -> str:
        """The accelerators, or the processor where there are none: ``8 x NVIDIA H200``."""
        if self.accelerators and self.accelerator:
            return f"{self.accelerators} x {self.accelerator}"
        return self.processor or "unknown"

    @property
    def generates(self) -> bool:
        """True for a benchmark whose scores are those of rule T26."""
        definition = self.judged.definition
        return definition is not None and definition.kind == "generate"

    @property
    def has_score(self) -> bool:
        """True where a number stands in the table that others are compared with."""
        return self.score_minutes is not None or bool(self.generation)

    @property
    def cost(self) -> float:
        """What results are ranked by, less is better: minutes, or seconds per image."""
        if self.generation:
            return 1 / max(self.generation[RANKED_BY].mean, 1e-300)
        return math.inf if self.score_minutes is None else self.score_minutes

    @property
    def standing(self) -> str:
        """What stands in place of a score, or an empty string: ``provisional: 1 of 5 runs``."""
        if self.verdict == "provisional":
            return f"provisional: {self.runs} of {self.required} runs"
        if self.verdict in ("rejected", "fail"):
            rules = dict.fromkeys(finding.rule for finding in self.findings if finding.is_error)
            count = sum(finding.is_error for finding in self.findings)
            return f"{self.verdict}: {count} error{'' if count == 1 else 's'} ({', '.join(rules)})"
        return ""


def rows(judgement: Judgement) -> list[Row]:
    """One row for each result, group by group, the fastest first."""
    made = [_row(result) for result in judgement.results]
    return sorted(
        made,
        key=lambda row: (
            row.group,
            _ORDER[row.verdict],
            row.cost,
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
    definition, benchmark, runs = result.definition, result.benchmark, result.folder.runs
    scored: Score | GenerationScore | Provisional | Rejected | None = None
    if definition and runs:
        scored = score(runs, definition, result.findings)
    elif benchmark and runs and result.folder.scale != "weak":
        scored = historical_score(runs, benchmark)
    number = scored if isinstance(scored, Score) else None
    generated = scored if isinstance(scored, GenerationScore) else None
    so_far = scored if isinstance(scored, Provisional) else None
    errors = [finding for finding in result.findings if finding.is_error]
    warnings = [finding for finding in result.findings if finding.severity == "warning"]
    verdict: Verdict = "scored" if number or generated else "rejected" if errors else "provisional"
    if result.is_history:
        verdict = "fail" if errors else "pass"
    samples, quality = _course(result) if verdict != "rejected" else (None, {})
    asked = definition or benchmark
    compared = _compared(result)
    names = _names(result)
    system = _machine(result)
    return Row(
        **names,
        accelerators=_accelerators(system),
        accelerator=_text(system, "accelerator") or _text(system, "accelerator_model_name"),
        processor=_text(system, "processor") or _text(system, "host_processor_model_name"),
        nodes=_count(system, "nodes") or _count(system, "number_of_nodes") or 0,
        framework=_text(system, "framework"),
        runs=len(runs),
        required=asked.runs.required if asked else 0,
        converged=sum(run.converged for run in runs),
        score_minutes=number.minutes if number else None,
        score_low=number.low if number else None,
        score_high=number.high if number else None,
        provisional_minutes=so_far.minutes_so_far if so_far else None,
        samples_to_target=samples,
        epochs_to_target=_epochs(result),
        rcp_verdict=compared.verdict if compared else "",
        rcp_factor=compared.factor if compared and verdict != "rejected" else None,
        quality=quality,
        verdict=verdict,
        reasons=(*_told_once(errors), *_told_once(warnings)),
        findings=result.findings,
        provisional_targets=(definition.provisional or "") if definition else "",
        judged=result,
        **(_energy(result) if number or generated else {}),
        seeds=_seeds(runs),
        generation=generated.scores if generated else {},
        provisional_generation=so_far.generation_so_far if so_far else {},
    )


def _told_once(findings: Iterable[Finding]) -> Iterator[str]:
    """Rule and message of each finding; of those that say the same, one for all of their files."""
    paths_of: dict[str, set[Path]] = {}
    for finding in findings:
        paths_of.setdefault(finding.headline, set()).add(finding.path)
    for headline, paths in paths_of.items():
        yield headline if len(paths) == 1 else f"{headline} (in {len(paths)} files)"


def _energy(result: JudgedResult) -> dict[str, Any]:
    """Energy of a run, and what its sensors did not measure; nothing without power logs."""
    power, definition = result.folder.power, result.definition
    if not power or definition is None:
        return {}
    dropped = definition.runs.drop_fastest, definition.runs.drop_slowest
    joules = energy_joules(result.folder.runs, power, *dropped)
    return {"energy_joules": joules, "not_measured": printable(power[0].not_measured)}


def _seeds(runs: Sequence[RunLog]) -> str:
    """Where the seeds come from: ``derived``, ``given``, or both."""
    events = [event for run in runs if (event := run.first("seed"))]
    origins = {origin for event in events if (origin := event.metadata.get("origin")) in ORIGINS}
    return " and ".join(sorted(map(str, origins)))


def _names(result: JudgedResult) -> dict[str, Any]:
    """Who, what and where: as the folders say, else as the first log says. The benchmark of an
    MLPerf result is called as the logs call it, whatever the folder is called.
    """
    place, runs = result.place, result.folder.runs

    def logged(key: str) -> str | None:
        return next(filter(None, (run.text(key) for run in runs)), None)

    def named(*texts: str | None) -> str:
        return printable((next(filter(None, texts), None) or "unknown")[:64])

    benchmark = (place.benchmark, logged("submission_benchmark"))
    scale = place.scale if result.is_history else named(place.scale, logged("submission_scale"))
    return {
        "submitter": named(place.submitter, logged("submission_org")),
        "system": named(place.system, logged("submission_platform")),
        "benchmark": named(*(reversed(benchmark) if result.is_history else benchmark)),
        "scale": scale,
        "division": named(place.division, logged("submission_division")),
    }


def _course(result: JudgedResult) -> tuple[float | None, dict[str, float]]:
    """Samples to target and final quality, each the median over the converged runs."""
    converged = [run for run in result.folder.runs if run.converged and run.quality_curve]
    if not converged or result.definition is None:
        return None, {}
    samples = [count for run in converged if (count := run.samples_to_target) is not None]
    if result.definition.kind == "generate":
        samples = []  # none were trained on
    last = [run.quality_curve[-1].metrics for run in converged]
    metrics = _metrics_of(result.definition)
    return statistics.median(samples) if samples else None, {
        name: statistics.median(found[name] for found in last)
        for name in metrics
        if all(name in found for found in last)
    }


def _epochs(result: JudgedResult) -> float | None:
    """Epochs to the target in a round of MLPerf, the median over the converged runs."""
    if not result.is_history:
        return None
    epochs = [run.epochs_to_target for run in result.folder.runs]
    known = [value for value in epochs if value is not None]
    return statistics.median(known) if known else None


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


def _machine(result: JudgedResult) -> Mapping[str, object]:
    """The system's description; without one, what logs of MLPerf HPC say of nodes."""
    if result.system or not (result.is_history and result.folder.runs):
        return result.system
    first = result.folder.runs[0]
    return {key: first.value(key) for key in ("number_of_nodes", "accelerators_per_node")}


def _accelerators(system: Mapping[str, object]) -> int | None:
    """Of all nodes together; descriptions of MLPerf write numbers as text. None: not known."""
    per_node = _count(system, "accelerators_per_node")
    nodes = _count(system, "nodes") or _count(system, "number_of_nodes")
    return None if per_node is None else per_node * (nodes or 1)


def _count(system: Mapping[str, object], key: str) -> int | None:
    value = system.get(key)
    if isinstance(value, str) and re.fullmatch(r" *[0-9]{1,9} *", value):
        return int(value)
    return value if is_integer(value) and value >= 0 else None


COLUMNS = (
    "submitter", "system", "division", "benchmark", "scale", "nodes", "accelerators", "accelerator",
    "processor", "framework", "runs", "required", "converged", "score_minutes", "score_low",
    "score_high", "provisional_minutes", "samples_to_target", "epochs_to_target",
    "rcp_verdict", "rcp_factor", "verdict", "provisional_targets",
    "energy_joules", "not_measured", "seeds",
)  # fmt: skip


def _generation_columns(row: Row) -> dict[str, float | None]:
    """Each score of rule T26 and the ends of its interval; None where there is none."""
    columns: dict[str, float | None] = {}
    for metric in METRICS:
        found = row.generation.get(metric.name)
        columns[metric.name] = found.mean if found else None
        columns[f"{metric.name}_low"] = found.low if found else None
        columns[f"{metric.name}_high"] = found.high if found else None
    return columns


def _columns(row: Row) -> dict[str, Any]:
    return {**{name: getattr(row, name) for name in COLUMNS}, **_generation_columns(row)}


def as_json(table: Sequence[Row]) -> str:
    """A list with one object for each row; null where there is no number."""
    return json.dumps([_object(row) for row in table], indent=2)


def _object(row: Row) -> dict[str, Any]:
    return {
        **_columns(row),
        "quality": dict(row.quality),
        "reasons": list(row.reasons),
        "findings": [finding.as_json() for finding in row.findings],
    }


def as_csv(table: Sequence[Row]) -> str:
    """One line for each row, the reasons in one column; empty where there is no number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    generation = [f"{m.name}{end}" for m in METRICS for end in ("", "_low", "_high")]
    writer.writerow([*COLUMNS, *generation, "quality", "reasons"])
    for row in table:
        values = _columns(row).values()
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


_BEGIN = ("", "system", "hardware", "runs", "converged")
_HEADER = (*_BEGIN, "minutes", "95% interval", "samples")
_GENERATION_HEADER = (*_BEGIN, *(metric.heading for metric in METRICS), "95% interval")


def _header(members: Sequence[Row]) -> tuple[str, ...]:
    """The columns of a table; the last one only where something is compared."""
    if members[0].generates:
        return _GENERATION_HEADER
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
    return ", ".join(
        filter(None, (benchmark, scale and f"{scale} scale", f"{division} division{provisional}"))
    )


def _ranked(members: Sequence[Row]) -> list[tuple[Row, int | None]]:
    scored = [row for row in members if row.has_score]
    return [(row, scored.index(row) + 1 if row in scored else None) for row in members]


def _cells(row: Row, rank: int | None) -> list[str]:
    samples = "" if row.samples_to_target is None else f"{row.samples_to_target:,.0f}"
    if row.epochs_to_target is not None:
        samples = f"{row.epochs_to_target:,g} epochs"
    cells = [str(rank or ""), f"{row.submitter}/{row.system}", row.hardware]
    cells += [f"{row.runs}/{row.required}", str(row.converged)]
    if row.generates:
        return [*cells, *generation_cells(row), generation_interval(row)]
    last = [samples, rcp_cell(row)]
    if row.score_minutes is None:
        so_far = row.provisional_minutes
        return [*cells, "" if so_far is None else f"({minutes(so_far)})", "", *last]
    return [*cells, minutes(row.score_minutes), interval(row), *last]


def generation_cells(row: Row) -> list[str]:
    """The scores of rule T26; in brackets those of a provisional result so far."""
    if row.provisional_generation:
        so_far = row.provisional_generation
        return [f"({digits(so_far[metric.name])})" for metric in METRICS]
    found = [row.generation.get(metric.name) for metric in METRICS]
    return [digits(estimate.mean) if estimate else "" for estimate in found]


def generation_interval(row: Row) -> str:
    """The 95% interval of what results are ranked by."""
    found = row.generation.get(RANKED_BY)
    if found is None or found.low is None or found.high is None:
        return ""
    return f"{digits(found.low)} to {digits(found.high)}"


def digits(value: float) -> str:
    """Three digits or more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def minutes(value: float) -> str:
    """Minutes to three or four digits."""
    return f"{value:,.1f}" if value >= 100 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def interval(row: Row) -> str:
    """The 95% interval of a score."""
    if row.score_low is None or row.score_high is None:
        return ""
    return f"{minutes(row.score_low)} to {minutes(row.score_high)}"


def energy(row: Row) -> str:
    """The energy of a run and what was not measured: ``1.23 kJ a run, not measured: nothing``."""
    kilojoules = (row.energy_joules or 0.0) / 1000
    return f"{kilojoules:,.3g} kJ a run, not measured: {row.not_measured}"


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
        if row.judged.is_history and row.score_minutes is not None and slow:
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
        for row, rank in _ranked(members):
            rest = _cells(row, rank)[3:]
            cells = [str(rank or ""), row.submitter, row.system, row.hardware, *rest]
            if row.standing:
                cells[6] = f"{row.standing} {cells[6]}".strip()
            shown = cells[: len(header)]
            lines.append(f"| {' | '.join(_markdown(cell) for cell in shown)} |")
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
