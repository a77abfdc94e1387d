"""What a result is called and ran on, and what its runs have in common: counts, progress, energy.

Names and descriptions of machines are read in the words of our own rounds and of MLPerf's.
"""

import datetime
import math
import os
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cepheid.compliance.finding import escape
from cepheid.compliance.judge.judgement import JudgedResult
from cepheid.compliance.read.summary import Pace, RunSummary
from cepheid.compliance.score.kinds import find_kind
from cepheid.compliance.score.standing import (
    Standing,
    average_joules,
    judge_published,
    judge_result,
)
from cepheid.rules.definition import Definition, Runs
from cepheid.rules.events import is_integer
from cepheid.rules.systems import PeakShare, find_peak

HARDWARE = (  # the keys of a system's description that say what it is, whatever it is called
    "nodes", "processor", "processor_cores_per_node", "memory_gib_per_node",
    "accelerators_per_node", "accelerator",
)  # fmt: skip
COUNT_MAX = 1_000_000  # nodes, or accelerators of a node
EPOCHS_MAX = 10_000
NAME_MAX = 64  # characters of a name that are shown
UNKNOWN = "unknown"
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


@dataclass(frozen=True)
class Hardware:
    """The machine of a result. ``accelerators`` counts those of all nodes, None where unknown."""

    accelerators: int | None
    accelerator: str
    processor: str
    nodes: int
    framework: str

    @property
    def device(self) -> str:
        """The accelerator, or the processor where there is none."""
        return (self.accelerators and self.accelerator) or self.processor or "unknown"

    def __str__(self) -> str:
        """Return the accelerators, or the processor where there are none: ``8 x NVIDIA H200``."""
        many = f"{self.accelerators} x " if self.accelerators and self.accelerator else ""
        return f"{many}{self.device}"


def find_machine(result: JudgedResult) -> Mapping[str, object]:
    """Return the description of a machine; without one, what logs of MLPerf HPC say of nodes."""
    is_described = result.system or not (result.judged_in.is_mlperf and result.runs)
    return result.system if is_described else result.runs[0].setup


def read_hardware(system: Mapping[str, object]) -> Hardware:
    """Read the machine from a system's description."""
    nodes = _read_count(system, "nodes") or _read_count(system, "number_of_nodes")
    per_node = _read_count(system, "accelerators_per_node")
    return Hardware(
        accelerators=None if per_node is None else per_node * (nodes or 1),
        accelerator=_read_text(system, "accelerator", "accelerator_model_name"),
        processor=_read_text(system, "processor", "host_processor_model_name"),
        nodes=nodes or 0,
        framework=_read_text(system, "framework"),
    )


def _read_text(system: Mapping[str, object], *keys: str) -> str:
    """Return the first of several fields that is a text and not empty."""
    values = (system.get(key) for key in keys)
    texts = (escape(value[:200]) for value in values if isinstance(value, str))
    return next(filter(None, texts), "")


def _read_count(system: Mapping[str, object], key: str) -> int | None:
    """Return a number of something; descriptions of MLPerf write numbers as text.

    No machine has more than ``COUNT_MAX``; the schema says so too, which rounds of MLPerf lack.
    """
    value: object = system.get(key)
    if isinstance(value, str) and re.fullmatch(r" *[0-9]{1,9} *", value):
        value = int(value)
    return value if is_integer(value) and 0 <= value <= COUNT_MAX else None


@dataclass(frozen=True)
class Names:
    """Whose result it is, and of what. ``scale`` is None where the round has none."""

    submitter: str
    system: str
    division: str
    benchmark: str
    scale: str | None

    def __str__(self) -> str:
        return f"{self.submitter}/{self.system}"


def find_standing(result: JudgedResult) -> Standing:
    """Return the standing of a result: an error rejects it, in rounds of MLPerf it fails."""
    if result.judged_in.is_mlperf:
        is_weak = result.folder.scale == "weak"  # HPC: models per minute
        return judge_published(result.summary, result.benchmark, result.findings, is_weak)
    return judge_result(result.runs, result.definition, result.findings, result.convergence)


def find_names(result: JudgedResult) -> Names:
    """Return the names as the folders say, else as the first log says.

    In rounds of MLPerf a benchmark is called as the logs call it, whatever its folder is.
    """
    place, is_mlperf = result.place, result.judged_in.is_mlperf

    def find(key: str) -> str | None:
        return next(filter(None, (run.text(f"submission_{key}") for run in result.runs)), None)

    benchmark = place.benchmark, find("benchmark")
    return Names(
        submitter=_name(place.submitter, find("org")),
        system=_name(place.system, find("platform")),
        division=_name(place.division, find("division")),
        benchmark=_name(*(benchmark[::-1] if is_mlperf else benchmark)),
        scale=place.scale if is_mlperf else _name(place.scale, find("scale")),
    )


def _name(*texts: str | None) -> str:
    return escape((next(filter(None, texts), None) or UNKNOWN)[:NAME_MAX])


def find_progress(result: JudgedResult) -> Progress:
    """Return how far the runs of a result that is not rejected came."""
    definition, kind = result.definition, find_kind(result.definition)
    ratio = find_median([run.update_time_ratio or None for run in result.runs])
    if result.judged_in.is_mlperf:
        held = result.benchmark.runs if result.benchmark else None
        samples = average_kept([run.samples for run in result.runs], held)
        epochs = average_kept([run.epochs for run in result.runs], held)
        if epochs and epochs > EPOCHS_MAX:  # some logs call the number of samples so
            samples, epochs = epochs, None
        return Progress(samples, epochs, update_time_ratio=ratio)
    if definition is None:
        return Progress(update_time_ratio=ratio)
    evaluated = [run for run in result.runs if run.converged and run.metrics is not None]
    return Progress(
        samples=find_median([kind.count_samples(run) for run in evaluated]),
        quality=find_median_quality(evaluated, list_metrics(definition)),
        update_time_ratio=ratio,
    )


def find_code(result: JudgedResult, benchmark: str) -> Path | None:
    """Return the submitted code of a benchmark: ``benchmarks/<name>`` beside ``results``.

    None without it. A link on the way could lead anywhere, and what is there would be published.
    """
    if result.judged_in.is_mlperf or not result.folder.parts:
        return None
    folder = Path(os.path.abspath(result.folder.path)).parents[2] / "benchmarks" / benchmark
    is_link = folder.is_symlink() or folder.parent.is_symlink()
    return folder if folder.is_dir() and not is_link else None
