"""Leaderboard rows: one for each result.

A row has a number only where nothing stands against it: a rejected result shows its reasons, one
with too few runs its count. Results are ranked only within one benchmark, scale and division (T22).
"""

import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from compliance.finding import Finding, escape
from compliance.judge.judgement import JudgedResult, Judgement
from compliance.read.summary import RunSummary
from compliance.score.scores import (
    Estimate,
    GenerationScore,
    Provisional,
    Rejected,
    Score,
    energy_joules,
    historical_score,
    score,
)
from rules.definition import Definition
from rules.events import is_integer
from rules.generation import METRICS

Verdict = Literal["scored", "provisional", "rejected", "pass", "fail"]

RANKED_BY = METRICS[-1].name  # where a benchmark generates
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
    update_time_ratio: float | None = None  # over a plain update, where one does more
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
    return sorted(map(row_of, judgement.results), key=place_in_table)


def place_in_table(row: Row) -> tuple[Any, ...]:
    """Sorts rows: by group, those with a score first and the fastest of them before the others."""
    return row.group, _ORDER[row.verdict], row.cost, row.submitter, row.system


def groups(table: Iterable[Row]) -> dict[tuple[str, str, str], list[Row]]:
    """The rows of each benchmark, scale and division, in their order."""
    found: dict[tuple[str, str, str], list[Row]] = {}
    for row in table:
        found.setdefault(row.group, []).append(row)
    return found


def row_of(result: JudgedResult) -> Row:
    """Return the row of one result."""
    definition, benchmark, runs = result.definition, result.benchmark, result.runs
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
    if result.judged_in.is_history:
        verdict = "fail" if errors else "pass"
    samples, quality = _course(result) if verdict != "rejected" else (None, {})
    asked = definition or benchmark
    against_reference = result.convergence
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
        rcp_verdict=against_reference.verdict if against_reference else "",
        rcp_factor=against_reference.factor
        if against_reference and verdict != "rejected"
        else None,
        quality=quality,
        verdict=verdict,
        reasons=(*_told_once(errors), *_told_once(warnings)),
        findings=result.findings,
        provisional_targets=(definition.provisional or "") if definition else "",
        judged=result,
        **(_energy(result) if number or generated else {}),
        update_time_ratio=_update_time_ratio(runs) if verdict != "rejected" else None,
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
    not_measured, definition = result.summary.not_measured, result.definition
    if not_measured is None or definition is None:
        return {}
    dropped = definition.runs.drop_fastest, definition.runs.drop_slowest
    return {"energy_joules": energy_joules(result.runs, *dropped), "not_measured": not_measured}


def _update_time_ratio(runs: Sequence[RunSummary]) -> float | None:
    """The median over the converged runs that tell it."""
    ratios = [ratio for run in runs if (ratio := run.update_time_ratio)]
    return statistics.median(ratios) if ratios else None


def _seeds(runs: Sequence[RunSummary]) -> str:
    """Where the seeds come from: ``derived``, ``given``, or both."""
    return " and ".join(sorted({run.seed_origin for run in runs} - {""}))


def _names(result: JudgedResult) -> dict[str, Any]:
    """Who, what and where: as the folders say, else as the first log says. The benchmark of an
    MLPerf result is called as the logs call it, whatever the folder is called.
    """
    place, runs = result.place, result.runs

    def logged(key: str) -> str | None:
        return next(filter(None, (run.text(key) for run in runs)), None)

    def named(*texts: str | None) -> str:
        return escape((next(filter(None, texts), None) or "unknown")[:64])

    benchmark = (place.benchmark, logged("submission_benchmark"))
    scale = (
        place.scale
        if result.judged_in.is_history
        else named(place.scale, logged("submission_scale"))
    )
    return {
        "submitter": named(place.submitter, logged("submission_org")),
        "system": named(place.system, logged("submission_platform")),
        "benchmark": named(*(reversed(benchmark) if result.judged_in.is_history else benchmark)),
        "scale": scale,
        "division": named(place.division, logged("submission_division")),
    }


def _course(result: JudgedResult) -> tuple[float | None, dict[str, float]]:
    """Samples to target and final quality, each the median over the converged runs."""
    converged = [run for run in result.runs if run.converged and run.metrics is not None]
    if not converged or result.definition is None:
        return None, {}
    samples = [run.samples for run in converged if run.samples is not None]
    if result.definition.kind == "generate":
        samples = []  # none were trained on
    last = [run.metrics or {} for run in converged]
    metrics = _metrics_of(result.definition)
    return statistics.median(samples) if samples else None, {
        name: statistics.median(found[name] for found in last)
        for name in metrics
        if all(name in found for found in last)
    }


def _epochs(result: JudgedResult) -> float | None:
    """Epochs to the target in a round of MLPerf, the median over the converged runs."""
    if not result.judged_in.is_history:
        return None
    epochs = [run.epochs for run in result.runs]
    known = [value for value in epochs if value is not None]
    return statistics.median(known) if known else None


def _metrics_of(definition: Definition) -> list[str]:
    return [target.metric for target in definition.quality] + list(definition.reported)


def _text(system: Mapping[str, object], key: str) -> str:
    value = system.get(key)
    return escape(value[:200]) if isinstance(value, str) else ""


def _machine(result: JudgedResult) -> Mapping[str, object]:
    """The system's description; without one, what logs of MLPerf HPC say of nodes."""
    if result.system or not (result.judged_in.is_history and result.runs):
        return result.system
    return result.runs[0].nodes


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
