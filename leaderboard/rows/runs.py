"""What the runs of a result have in common: how many, how far they came, when, their energy."""

import datetime
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cepheid.compliance.judge.judgement import JudgedResult
from cepheid.compliance.read.summary import Pace, RunSummary
from cepheid.compliance.score.standing import average_joules
from cepheid.rules.definition import Definition, Runs
from cepheid.rules.systems import PeakShare, find_peak

HARDWARE = (  # the keys of a system's description that say what it is, whatever it is called
    "nodes", "processor", "processor_cores_per_node", "memory_gib_per_node",
    "accelerators_per_node", "accelerator",
)  # fmt: skip
_MS_MAX = 253_402_300_800_000  # the year 10000


@dataclass(frozen=True)
class RunCounts:
    """How many runs a result has, must have, and how many converged.

    ``seeds`` is "derived" where all seeds are, so that none was chosen (rule T15).
    """

    made: int
    required: int
    converged: int
    seeds: str

    def __str__(self) -> str:
        return f"{self.made}/{self.required}"


@dataclass(frozen=True)
class Progress:
    """How far the converged runs came: medians over them.

    ``samples`` and ``epochs`` are those to the target, ``quality`` the metrics of the last
    evaluation. ``update_time_ratio`` is the time of an update over that of a plain one, where an
    update does more.
    """

    samples: float | None = None
    epochs: float | None = None
    quality: Mapping[str, float] = field(default_factory=dict)
    update_time_ratio: float | None = None


@dataclass(frozen=True)
class Energy:
    """The energy of a run in joules (rule T23), and what the power logs leave out.

    ``joules`` is None where a power log is missing.
    """

    joules: float | None
    not_measured: str


def count_runs(runs: Sequence[RunSummary], required: int) -> RunCounts:
    """Count the runs of a result."""
    seeds = " and ".join(sorted({run.seed_origin for run in runs} - {""}))
    return RunCounts(len(runs), required, sum(run.converged for run in runs), seeds)


@dataclass(frozen=True)
class Begun:
    """The runs of a benchmark that a submitter began on one hardware (rule T15).

    Those of all systems with the same description of the hardware, whatever they are called, and
    those that were interrupted.
    """

    runs: int
    systems: int

    def __str__(self) -> str:
        names = f" under {self.systems} names of the system" if self.systems > 1 else ""
        return f"{self.runs} on this hardware{names}"


def count_begun(results: Iterable[JudgedResult]) -> Mapping[Path, Begun]:
    """Count the begun runs of each result, by its folder."""
    groups: dict[tuple[object, ...], list[JudgedResult]] = {}
    for result in results:
        place = result.place
        hardware = [repr(result.system.get(key)) for key in HARDWARE]
        who = place.submitter, place.benchmark, place.scale, place.division
        key = (*who, *(hardware if result.system else (place.system,)))
        groups.setdefault(key, []).append(result)
    begun: dict[Path, Begun] = {}
    for members in groups.values():
        folders = [member.folder for member in members]
        logs = sum(len(one.runs) + len(one.interrupted) + len(one.unfinished) for one in folders)
        systems = len({member.place.system for member in members})
        begun |= {one.path: Begun(logs, systems) for one in folders}
    return begun


def measure_energy(result: JudgedResult) -> Energy | None:
    """Return the energy of a run of a scored result; None without power logs.

    mlcommons multiplies it like the time where a result converged faster than the reference.
    """
    not_measured, judged_by = result.summary.not_measured, result.definition or result.benchmark
    if not_measured is None or judged_by is None:
        return None
    joules = average_joules(result.runs, judged_by.runs)
    return Energy(None if joules is None else joules * result.summary.scaling, not_measured)


def measure_pace(runs: Sequence[RunSummary]) -> Pace | None:
    """Return the median pace of the converged runs; None where they differ in more than speed."""
    paces = [run.pace for run in runs if run.converged and run.pace is not None]
    if len({(pace.precision, pace.parameters) for pace in paces}) != 1:
        return None
    median = statistics.median(pace.samples_per_second for pace in paces)
    return replace(paces[0], samples_per_second=median)


def find_peak_share(result: JudgedResult, pace: Pace | None) -> PeakShare | None:
    """Return what share of its system's peak a result reached; None where that is not known.

    An open model may need other operations than the one that was counted.
    """
    if result.definition is None or pace is None or result.place.division != "closed":
        return None
    return pace.compute_share(result.definition, find_peak(result.system, pace.precision))


def find_update_time_ratio(runs: Sequence[RunSummary]) -> float | None:
    """Return the median over the runs whose logs hold a plain update to compare with."""
    return find_median([run.update_time_ratio or None for run in runs])


def list_metrics(definition: Definition) -> list[str]:
    """List the metrics that rank a run, then those that it only reports."""
    return [target.metric for target in definition.quality] + list(definition.reported)


def find_median(values: Sequence[float | None]) -> float | None:
    """Return the median of the values that are there, or None."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def average_kept(values: Sequence[float | None], held: Runs | None) -> float | None:
    """Return the mean without the fastest and the slowest, as mlcommons counts to the target.

    A run that did not converge is among the slowest. None where too many did not.
    """
    known = [math.inf if value is None else value for value in values]
    if held is None or len(known) <= 2 * held.drop_slowest:
        return find_median(values)
    kept = sorted(known)[held.drop_slowest : len(known) - held.drop_slowest]
    return statistics.fmean(kept) if math.isfinite(kept[-1]) else None


def find_median_quality(runs: Sequence[RunSummary], metrics: Sequence[str]) -> Mapping[str, float]:
    """Return the median of each metric that all runs have at their last evaluation."""
    last = [run.metrics or {} for run in runs]
    return {
        name: statistics.median(metrics_of_run[name] for metrics_of_run in last)
        for name in metrics
        if last and all(name in metrics_of_run for metrics_of_run in last)
    }


def format_time(ms: float | None) -> str | None:
    """Format a time since 1970 to the second, ``2026-11-22T19:35:49Z``.

    A log may claim any time: None for what no calendar has.
    """
    if ms is None or not 0 <= ms < _MS_MAX:
        return None
    moment = datetime.datetime.fromtimestamp(int(ms) // 1000, datetime.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def find_dates(started_ms: Iterable[float | None]) -> tuple[str, str] | None:
    """Find the days on which the first and the last of some runs started; None without any."""
    times = [ms for ms in started_ms if ms is not None]
    days = sorted(text[:10] for ms in times if (text := format_time(ms)) is not None)
    return (days[0], days[-1]) if days else None
