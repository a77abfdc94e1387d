"""A benchmark at a scale: a summary of its rules, a table for each division, and plots.

Beside scores stands what results need of each device: time, throughput, efficiency, energy.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from cepheid.compliance.score import margins
from cepheid.compliance.score.comparison import ratio
from cepheid.compliance.score.kinds import (
    GENERATION,
    TRAINING,
    Unit,
    format_minutes,
    format_number,
)
from cepheid.compliance.score.trimmed import Estimate
from cepheid.leaderboard.plots import charts
from cepheid.leaderboard.plots.plot import Table, make_table
from cepheid.leaderboard.rows.cells import (
    choose_unit,
    format_percent,
    format_ratio_interval,
    format_reference,
    format_value,
    name_unit,
    rank_rows,
)
from cepheid.leaderboard.rows.data import describe_level
from cepheid.leaderboard.rows.entry import Entry, group_entries
from cepheid.leaderboard.site.records import list_quantiles
from cepheid.leaderboard.site.reported import load_sets
from cepheid.leaderboard.site.view import Site, find_half_width, render
from cepheid.rules import evidence
from cepheid.rules.definition import Definition
from cepheid.rules.metrics import METRICS, QualityTarget

LOST_MAX = 0.1  # of what a steadily improving metric gains
LEVELS = (0.5, 0.25, 0.1, 0.05)  # of the way left to the target, for other targets


@dataclass(frozen=True)
class Column:
    """A column of numbers of results: ``find`` is None where a result has none.

    The best are first, the largest where ``has_most_first``. Few readers ask for a ``seldom`` one.
    """

    key: str
    find: Callable[[Entry], float | Estimate | None]
    show: Callable[[Entry, float], str] = lambda entry, value: format_number(value)
    name: str = ""
    has_most_first: bool = False
    is_seldom: bool = False
    hint: str = ""


def keep_columns(columns: Sequence[Column], entries: Sequence[Entry]) -> list[Column]:
    """Keep the columns in which any result has something."""
    return [c for c in columns if any(c.find(entry) is not None for entry in entries)]


def find_device_minutes(entry: Entry) -> float | None:
    """Return the minutes of all devices together, which cost; None for what generates."""
    return entry.time.mean * entry.devices if entry.time and entry.kind is TRAINING else None


def find_throughput(entry: Entry) -> float | None:
    """Return what a device does: samples or images a second, or epochs an hour of MLPerf."""
    samples, epochs = entry.progress.samples, entry.progress.epochs
    if entry.kind is not TRAINING:
        return entry.main.mean / entry.devices if entry.main else None
    if not entry.time or not entry.time.mean:
        return None
    if samples is not None:
        return samples / (60 * entry.time.mean) / entry.devices
    return None if epochs is None else 60 * epochs / entry.time.mean / entry.devices


def list_device_columns(entries: Sequence[Entry]) -> list[Column]:
    """List the columns of what results with a number need of each device.

    The efficiency is the speed-up over the fastest of the smallest systems with this device,
    divided by how many times as many devices there are.
    """
    kind, unit = entries[0].kind, choose_unit(entries) or Unit("min")
    families = {family.label: family for family in charts.group_families(entries)}
    has_samples = entries[0].progress.samples is not None
    done = ("samples/s" if has_samples else "epochs/h") if kind is TRAINING else "images/s"

    def find_efficiency(entry: Entry) -> float | None:
        family = families.get(entry.hardware.device) if entry.is_scored else None
        if family is None or len(family.best) < 2:
            return None
        return family.find_efficiency(entry.devices, entry.standing.cost)

    columns = (
        Column(
            "score",
            lambda entry: (entry.time or entry.main) if kind is TRAINING else entry.main,
            lambda entry, value: format_value(kind, value, unit),
            "time to train" if kind is TRAINING else "images/s",
            kind is GENERATION,
        ),
        Column(
            "device_minutes",
            find_device_minutes,
            lambda _, value: format_number(value * unit.factor),
            f"device-{name_unit(unit)}",
        ),
        Column("throughput", find_throughput, name=f"{done} per device", has_most_first=True),
        Column("efficiency", find_efficiency, lambda _, v: f"{100 * v:.0f}%", has_most_first=True),
        Column(
            "peak",
            lambda entry: entry.peak_share.share if entry.peak_share else None,
            lambda entry, value: str(entry.peak_share),
            "share of peak",
            True,
        ),
        Column("energy", lambda entry: entry.kilojoules, name="kJ a run"),
        Column(
            "device_energy",
            lambda entry: entry.kilojoules and entry.kilojoules / entry.devices,
            name="kJ per device",
        ),
    )
    return keep_columns(columns, entries)


def _find_quality(entry: Entry, name: str) -> float | None:
    return entry.progress.quality.get(name)


def list_columns(entries: Sequence[Entry], definition: Definition | None) -> list[Column]:
    """List the columns of what a score can show and how far results came, and of their quality."""
    has_epochs = any(entry.progress.epochs is not None for entry in entries)
    way = "epochs" if has_epochs else "samples"
    columns = [
        Column(
            "resolution",
            lambda entry: entry.level.resolution if entry.level and definition else None,
            lambda _, value: f"{100 * value:.2g}%",
        ),
        Column(way, lambda entry: getattr(entry.progress, way), lambda _, v: f"{v:,.0f}"),
        Column(
            "rcp",
            lambda entry: (entry.reference.factor or 1.0) if format_reference(entry) else None,
            lambda entry, _: format_reference(entry),
            "RCP",
            is_seldom=True,
        ),
    ]
    quality = [
        Column(
            target.metric,
            partial(_find_quality, name=target.metric),
            lambda _, value: f"{value:.4g}",
            has_most_first=target.better == "higher",
            is_seldom=True,
            hint=definition.meanings.get(target.metric, "") if definition else "",
        )
        for target in (definition.quality if definition else ())
    ]
    trains = entries[0].kind is TRAINING
    return keep_columns([*(columns if trains else ()), *quality], entries)


def make_pages(site: Site) -> Iterator[tuple[str, str]]:
    """Make a page for each benchmark and scale that has a result."""
    known = (entry for entry in site.entries if entry.is_known)
    for page, entries in group_entries(known, lambda entry: entry.benchmark_page).items():
        row, definition = entries[0], entries[0].definition
        by_division = sorted(
            group_entries(entries, lambda entry: entry.names.division).items(),
            key=lambda item: (item[0] != "closed", item[0]),
        )
        levels = {e.id: describe_level(e.level) for e in entries if e.level}
        context = {
            "row": row,
            "definition": definition,
            "rules": list(_describe_rules(definition)) if definition else [],
            "divisions": [_make_division(site, name, members) for name, members in by_division],
            "generation": METRICS if row.kind is GENERATION else (),
            "elsewhere": [one for one in load_sets() if row.names.benchmark in one.about],
            "levels": {"student": list_quantiles(), "results": levels},
        }
        yield page, render(site, "benchmark.html", page, **context)


def _make_division(site: Site, name: str, entries: Sequence[Entry]) -> dict[str, Any]:
    """Make what the template shows of a division: ``lines`` have a number, ``unranked`` none."""
    definition, trains = entries[0].definition, entries[0].kind is TRAINING
    ranked = [entry for entry in entries if entry.has_score]
    colours, unit = site.colour(ranked), choose_unit(ranked) or Unit("min")
    plots = [*charts.plot_results(ranked, colours, definition, name)] if ranked else []
    targets = definition.quality if definition and trains else ()
    if trains:
        what = "accelerators" if any(entry.hardware.accelerators for entry in ranked) else "nodes"
        families = charts.group_families(ranked, unit)
        plots.append(charts.plot_scaling(families, name, what, name_unit(unit), site.devices))
        plots.append(charts.plot_convergence(ranked, colours, name))
    plots.append(charts.plot_energy(ranked, colours, name, unit))
    left_out = (entry.energy.not_measured for entry in ranked if entry.energy)
    tables = (tabulate_other_targets(ranked, target, unit) for target in targets)
    return {
        "name": name,
        "lines": rank_rows(ranked),
        "behind": _compare_with_first(ranked),
        "colours": colours,
        "unit": unit,
        "unit_name": name_unit(unit),
        "half_width": find_half_width(ranked),
        "columns": list_columns(ranked, definition) if ranked else [],
        "device_columns": list_device_columns(ranked) if ranked else [],
        "left_out": list(dict.fromkeys(filter(None, left_out))),
        "plots": list(filter(None, plots)),
        "other_targets": list(filter(None, tables)),
        "unranked": [entry for entry in entries if not entry.has_score],
    }


def _compare_with_first(entries: Sequence[Entry]) -> dict[str, tuple[float, str]]:
    """Compare ranked results with the first: how many times as fast it is, as number and text."""
    levels = {entry.id: entry.level for entry in entries if entry.is_ranked and entry.level}
    behind: dict[str, tuple[float, str]] = {}
    for name, level in levels.items():
        found = ratio(next(iter(levels.values())), level)
        told = format_ratio_interval(found) if found.is_difference else "no difference"
        behind[name] = found.value, told if behind else ""
    return behind


def improves_steadily(entries: Sequence[Entry], target: QualityTarget) -> bool:
    """Return True if the metric seldom gets worse on its way to the target.

    Over all runs, what it loses from one evaluation to the next is at most a tenth of what it
    gains. Only then does it make sense to ask when it reached another value.
    """
    gained = lost = 0.0
    sign = 1 if target.better == "higher" else -1
    for run in (run for entry in entries for run in entry.runs):
        values = [value for _, value in charts.list_points(run, target.metric)]
        for before, after in itertools.pairwise(filter(math.isfinite, values)):
            change = sign * (after - before)
            gained, lost = gained + max(change, 0.0), lost + max(-change, 0.0)
    return lost <= LOST_MAX * gained


def tabulate_other_targets(
    entries: Sequence[Entry], target: QualityTarget, unit: Unit
) -> Table | None:
    """Tabulate the median times to several targets, the official one last.

    The levels lie on the way from the worst first evaluation to the target, in this metric alone.
    """
    shown = [entry for entry in entries if entry.has_score][: charts.RESULTS_MAX]
    curves = [charts.list_points(run, target.metric) for entry in shown for run in entry.runs]
    firsts = [value for curve in curves for _, value in curve[:1]]
    if not firsts or not improves_steadily(shown, target):
        return None
    start = max(firsts) if target.better == "lower" else min(firsts)
    way = (target.target + share * (start - target.target) for share in LEVELS)
    rounded = (float(f"{value:.3g}") if math.isfinite(value) else value for value in way)
    levels = list(dict.fromkeys([*rounded, target.target]))
    sign = "≤" if target.better == "lower" else "≥"
    header = ("result", *(f"{target.metric} {sign} {value:g}" for value in levels))
    rows = ((e.name, *(_format_median(e, target, level, unit) for level in levels)) for e in shown)
    return make_table(header, rows)


def _format_median(entry: Entry, target: QualityTarget, level: float, unit: Unit) -> str:
    """Format the median of the times until the first evaluation that reaches a level."""
    asked = QualityTarget(target.metric, target.better, level)
    curves = [charts.list_points(run, asked.metric) for run in entry.runs]
    times = [next((time for time, value in each if asked.holds(value)), None) for each in curves]
    reached = sum(time is not None for time in times)
    median = statistics.median([math.inf if time is None else time for time in times])
    if reached * 2 <= len(times):
        return "–"
    short = "" if reached == len(times) else f" ({reached} of {len(times)} runs)"
    return (format_minutes(median * unit.factor) if math.isfinite(median) else "–") + short


def describe_resolution(definition: Definition) -> str:
    """Say which differences the required runs show, if it was simulated for this definition.

    Empty without `cepheid measure resolution --record`.
    """
    found = evidence.read_file(definition.name, evidence.RESOLUTION_FILE).get(definition.scale)
    if not found or found["definition_digest"] != definition.digest:
        return ""
    pair, table = (
        "a factor of ten or more" if share is None else format_percent(share)
        for share in (found["pair"], found["table"])
    )
    said = (
        f"with {found['runs']} runs whose times per sample differ by "
        f"{format_percent(found['spread'])}, two systems are told apart from {pair} on, "
        f"in a table of ten from {table}"
    )
    if found["early"] is None:
        return said
    return (
        f"{said}; convergence 10% early is rejected with a probability of {found['early'][1]:.2f}, "
        f"10% late charged with {found['late'][1]:.2f}"
    )


def _describe_rules(definition: Definition) -> Iterator[tuple[str, str]]:
    """Return what a reader must know to understand a number, as name and text."""
    runs, timing = definition.runs, definition.timing
    dropped = f"the fastest {runs.drop_fastest} and the slowest {runs.drop_slowest}"
    trains = f"; the time to train leaves out {dropped}, the score none"
    yield "target", " and ".join(map(str, definition.quality))
    yield "runs", f"{runs.required}{trains if definition.kind == 'train' else ''}"
    if definition.generation:
        counts = ", ".join(f"{count:,}" for count in definition.generation.counts)
        said = "images at a time; latency is that of the smallest number"
        yield "timed", f"generating {counts} {said}"
        yield "ranked by", "images per second with the largest number of images (rule T26)"
    else:
        every = f"every {timing.eval_every_samples:,} samples"
        yield "evaluation", f"{every}, at most {timing.max_samples:,} samples in all"
        yield "end of a run", evidence.describe_end(definition)
        yield "clock", "from run_start, before the data are touched, to run_stop"
    fixed = [f"{h.name} {h.default}" for h in definition.hyperparameters.values() if h.is_constant]
    more = {
        "resolution": describe_resolution(definition),
        "margins": margins.describe(definition),
        "fixed in the closed division": ", ".join(fixed),
    }
    yield from ((name, text) for name, text in more.items() if text)
