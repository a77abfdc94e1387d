"""Leaderboard rows: one for each result.

A row has a number only where nothing stands against it: a rejected result shows its reasons, one
with too few runs its count. Results are ranked only within one benchmark, scale and division (T22).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cepheid.compliance.finding import Finding
from cepheid.compliance.judge.judgement import JudgedResult
from cepheid.compliance.read.log.pace import Pace
from cepheid.compliance.read.summary import RunSummary
from cepheid.compliance.score.comparison import Level, measure_level
from cepheid.compliance.score.kinds import BenchmarkKind, find_kind
from cepheid.compliance.score.standing import Standing
from cepheid.leaderboard.rows.hardware import Hardware, read_hardware
from cepheid.leaderboard.rows.rounds import Names, RoundKind, find_round_kind
from cepheid.leaderboard.rows.runs import (
    Energy,
    Progress,
    RunCounts,
    count_runs,
    find_peak_share,
    measure_energy,
    measure_pace,
)
from cepheid.rules.definition import Runs
from cepheid.rules.devices import PeakShare


@dataclass(frozen=True)
class Comparison:
    """The samples to target compared with those of the reference (rule T21).

    ``verdict`` is empty where the rule does not apply. ``factor`` is for the reader: it does not
    affect the score.
    """

    verdict: str = ""
    factor: float | None = None


@dataclass(frozen=True)
class Row:
    """One result of a table.

    ``reasons`` are the errors, then the warnings, each once, with the number of files that it is
    about. ``energy`` is None unless it was measured and the result has a score. So are ``pace`` and
    ``peak_share``, the share of the system's peak that it reached (MFU).
    ``provisional_targets`` says why the targets of the benchmark may still change. ``level`` is
    what the result is compared by, None without a score.
    """

    names: Names
    kind: BenchmarkKind
    round_kind: RoundKind
    hardware: Hardware
    runs: RunCounts
    standing: Standing
    progress: Progress
    reference: Comparison
    energy: Energy | None
    pace: Pace | None
    peak_share: PeakShare | None
    reasons: tuple[str, ...]
    findings: tuple[Finding, ...]
    provisional_targets: str
    level: Level | None
    judged: JudgedResult

    @property
    def group(self) -> tuple[str, str, str]:
        """What results are ranked within."""
        return self.names.benchmark, self.names.scale or "", self.names.division

    @property
    def kilojoules(self) -> float | None:
        """The energy of a run, None where it was not measured."""
        joules = self.energy.joules if self.energy else None
        return None if joules is None else joules / 1000

    @property
    def has_score(self) -> bool:
        """True where a number stands in the table that others are compared with."""
        return self.standing.score is not None


def list_rows(results: Iterable[JudgedResult]) -> list[Row]:
    """Return one row for each result, group by group, the fastest first."""
    return sorted(map(make_row, results), key=place_in_table)


def place_in_table(row: Row) -> tuple[Any, ...]:
    """Return the key that sorts rows: by group, results with a score and the fastest first."""
    standing, names = row.standing, row.names
    return row.group, standing.place, standing.cost, names.submitter, names.system


def group_rows(table: Iterable[Row]) -> dict[tuple[str, str, str], list[Row]]:
    """Group rows by benchmark, scale and division, and keep their order."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in table:
        groups.setdefault(row.group, []).append(row)
    return groups


def make_row(result: JudgedResult) -> Row:
    """Make the row of one result."""
    definition, round_kind = result.definition, find_round_kind(result.judged_in)
    standing, kind = round_kind.find_standing(result), find_kind(definition)
    judged_by = definition or result.benchmark
    held = judged_by.runs if judged_by and standing.score else None
    pace = measure_pace(result.runs) if standing.score else None
    return Row(
        names=round_kind.find_names(result),
        kind=kind,
        round_kind=round_kind,
        hardware=read_hardware(round_kind.find_machine(result)),
        runs=count_runs(result.runs, judged_by.runs.required if judged_by else 0),
        standing=standing,
        progress=Progress() if standing.is_rejected else round_kind.find_progress(result),
        reference=_compare(result, standing),
        energy=measure_energy(result) if standing.score else None,
        pace=pace,
        peak_share=find_peak_share(result, pace),
        reasons=tuple(_list_reasons(result.findings)),
        findings=result.findings,
        provisional_targets=(definition.provisional or "") if definition else "",
        level=_measure_level(kind, result.runs, held) if held else None,
        judged=result,
    )


def _measure_level(kind: BenchmarkKind, runs: Sequence[RunSummary], held: Runs) -> Level | None:
    """Measure what a result is compared by: time to train, or seconds per image."""
    values = [kind.measure(run) for run in runs]
    costs = [math.inf if value is None else kind.cost(value) for value in values]
    return measure_level(costs, held.drop_fastest, held.drop_slowest)


def _compare(result: JudgedResult, standing: Standing) -> Comparison:
    if result.convergence is None:
        return Comparison()
    factor = None if standing.is_rejected else result.convergence.factor
    return Comparison(result.convergence.verdict, factor)


def _list_reasons(findings: Iterable[Finding]) -> Iterator[str]:
    """List errors, then warnings; of those that say the same, one for all of their files."""
    for severity in ("error", "warning"):
        paths_of: dict[str, set[Path]] = {}
        for finding in findings:
            if finding.severity == severity:
                paths_of.setdefault(finding.headline, set()).add(finding.path)
        for headline, paths in paths_of.items():
            yield headline if len(paths) == 1 else f"{headline} (in {len(paths)} files)"
