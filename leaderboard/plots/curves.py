"""Plots of quality against time, of one result or of all results of a benchmark."""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from cepheid.compliance.score.kinds import GENERATION, format_minutes, format_number
from cepheid.leaderboard.plots.plot import (
    LOG_RATIO,
    Axis,
    Guide,
    Mark,
    Plot,
    Series,
    Table,
    make_plot,
    make_table,
)
from cepheid.leaderboard.rows.entry import Entry, Run
from cepheid.rules.definition import Definition
from cepheid.rules.metrics import QualityTarget

RESULTS_MAX = 8  # drawn in one plot, the fastest
RESULTS_KEPT = 20  # for readers who filter
RUNS_MAX = 12  # lines in one plot; of more runs, medians are drawn
LOST_MAX = 0.1  # of what a steadily improving metric gains
LEVELS = (0.5, 0.25, 0.1, 0.05, 0.0)  # of the way left to the target, for other targets


def plot_results(
    entries: Sequence[Entry], colours: Mapping[str, int], definition: Definition | None, name: str
) -> list[Plot]:
    """Plot the results of a division, or one result alone, as suits its kind of benchmark."""
    if entries[0].kind is GENERATION:
        return plot_generation(entries, colours, name)
    return plot_quality(entries, colours, definition.quality if definition else (), name)


def plot_quality(
    entries: Sequence[Entry],
    colours: Mapping[str, int],
    metrics: Iterable[QualityTarget],
    name: str,
) -> list[Plot]:
    """Make a plot for each metric: a line for each run, or medians and bands of many runs."""
    kept = [entry for entry in entries if entry.id in colours][:RESULTS_KEPT]
    drawn = kept[:RESULTS_MAX]
    ends = [
        run.course.curve[-1].seconds for entry in drawn for run in entry.runs if run.course.curve
    ]
    is_log = bool(ends) and max(ends) > LOG_RATIO * min(ends) > 0
    found = []
    for target in metrics:
        more: list[Series] = []
        if sum(len(entry.runs) for entry in drawn) > RUNS_MAX:
            series = [_make_median(entry, target.metric, colours[entry.id]) for entry in kept]
            series, more = series[:RESULTS_MAX], series[RESULTS_MAX:]
            what = "Lines are medians over the runs of a result, bands all of its runs."
        else:
            series = [
                _make_series(entry, run, target.metric, colours[entry.id])
                for entry in drawn
                for run in entry.runs
            ]
            what = "Each line is one run; a cross at its end: it did not converge."
        made = make_plot(
            f"{name}-{target.metric}",
            f"{target.metric} against time",
            Axis("minutes since run_start", is_log=is_log, from_zero=True),
            Axis(f"{target.metric}, {target.better} is better", is_log=False),
            series,
            guides=[Guide(target.target, f"target {target.target:g}")],
            table=_tabulate_numbers(drawn, target.metric),
            more=more,
            description=f"{what}{_say_how_many(entries, drawn)}",
        )
        found += [made] if made else []
    return found


def _say_how_many(entries: Sequence[Entry], drawn: Sequence[Entry]) -> str:
    return f" The fastest {len(drawn)} of {len(entries)} results." if drawn != [*entries] else ""


def _make_series(entry: Entry, run: Run, metric: str, colour: int) -> Series:
    points = tuple(
        (point.seconds / 60, point.metrics[metric])
        for point in run.course.curve
        if metric in point.metrics
    )
    name = entry.name
    end: Mark = "none" if run.summary.converged else "cross_at_end"
    device = entry.hardware.device
    return Series(name, points, colour, "solid", end, legend=device, key=entry.id)


def _make_median(entry: Entry, metric: str, colour: int) -> Series:
    """Make the median over the runs at each evaluation that most of them made, and their band."""
    curves = [
        [(p.seconds / 60, p.metrics[metric]) for p in run.course.curve if metric in p.metrics]
        for run in entry.runs
    ]
    points, band = [], []
    for made in itertools.zip_longest(*curves):
        here = [point for point in made if point is not None]
        if 2 * len(here) <= len(entry.runs):
            break
        minutes = statistics.median(point[0] for point in here)
        values = [point[1] for point in here]
        points.append((minutes, statistics.median(values)))
        band.append((minutes, min(values), max(values)))
    return Series(
        entry.name,
        tuple(points),
        colour,
        "solid",
        "none",
        legend=entry.hardware.device,
        key=entry.id,
        band=tuple(band),
    )


def improves_steadily(entries: Sequence[Entry], target: QualityTarget) -> bool:
    """Return True if the metric seldom gets worse on its way to the target.

    Over all runs, what it loses from one evaluation to the next is at most a tenth of what it
    gains. Only then does it make sense to ask when it reached another value.
    """
    gained = lost = 0.0
    sign = 1 if target.better == "higher" else -1
    for run in (run for entry in entries for run in entry.runs):
        values = [p.metrics[target.metric] for p in run.course.curve if target.metric in p.metrics]
        for before, after in itertools.pairwise(filter(math.isfinite, values)):
            change = sign * (after - before)
            gained, lost = gained + max(change, 0.0), lost + max(-change, 0.0)
    return lost <= LOST_MAX * gained


def _tabulate_numbers(entries: Sequence[Entry], metric: str) -> Table:
    return make_table(
        ("result", "run", "minutes", "samples", metric),
        (
            (
                entry.name,
                run.summary.number,
                format_minutes(point.seconds / 60),
                f"{point.samples:,}",
                f"{point.metrics[metric]:.4g}",
            )
            for entry in entries
            for run in entry.runs
            for point in run.course.curve
            if metric in point.metrics
        ),
    )


def tabulate_other_targets(entries: Sequence[Entry], target: QualityTarget) -> Table | None:
    """Tabulate the median minutes to several targets, the official one last.

    The levels lie on the way from the worst first evaluation to the target, in this metric alone.
    """
    shown = [entry for entry in entries if entry.has_score][:RESULTS_MAX]
    firsts = [
        run.course.curve[0].metrics[target.metric]
        for entry in shown
        for run in entry.runs
        if run.course.curve and target.metric in run.course.curve[0].metrics
    ]
    if not firsts or not improves_steadily(shown, target):
        return None
    start = max(firsts) if target.better == "lower" else min(firsts)
    levels = [_round(target.target + share * (start - target.target)) for share in LEVELS[:-1]]
    levels = list(dict.fromkeys([*levels, target.target]))
    sign = "≤" if target.better == "lower" else "≥"
    return make_table(
        ("result", *(f"{target.metric} {sign} {value:g}" for value in levels)),
        (
            (entry.name, *(_format_median_minutes(entry, target, value) for value in levels))
            for entry in shown
        ),
    )


def _round(value: float) -> float:
    return float(f"{value:.3g}") if math.isfinite(value) else value


def _format_median_minutes(entry: Entry, target: QualityTarget, level: float) -> str:
    quality_target = QualityTarget(target.metric, target.better, level)
    times = [compute_minutes_to(run, quality_target) for run in entry.runs]
    reached = [value for value in times if value is not None]
    if len(reached) * 2 <= len(times):
        return "–"
    median = statistics.median([math.inf if value is None else value for value in times])
    short = "" if len(reached) == len(times) else f" ({len(reached)} of {len(times)} runs)"
    return (format_minutes(median) if math.isfinite(median) else "–") + short


def compute_minutes_to(run: Run, target: QualityTarget) -> float | None:
    """Return the minutes until the first evaluation at which ``target`` holds, or None."""
    for point in run.course.curve:
        if target.metric in point.metrics and target.holds(point.metrics[target.metric]):
            return point.seconds / 60
    return None


def plot_generation(entries: Sequence[Entry], colours: Mapping[str, int], name: str) -> list[Plot]:
    """Plot latency and images per second against the number of images generated at a time."""
    drawn = [entry for entry in entries if entry.id in colours][:RESULTS_MAX]
    medians = {
        entry.id: {
            images: statistics.median(
                timing.seconds
                for run in entry.runs
                for timing in run.course.timings
                if timing.images == images
            )
            for images in sorted({t.images for run in entry.runs for t in run.course.timings})
        }
        for entry in drawn
    }
    numbers = make_table(
        ("result", "images at a time", "seconds", "images/s"),
        (
            (entry.name, f"{images:,}", format_number(seconds), format_number(images / seconds))
            for entry in drawn
            for images, seconds in medians[entry.id].items()
        ),
    )
    kinds = (
        ("latency", "Latency", "seconds, median", lambda n, s: s),
        ("throughput", "Images per second", "images per second", lambda n, s: n / s),
    )
    found = []
    for kind, title, label, value in kinds:
        series = [
            Series(
                entry.name,
                tuple((images, value(images, s)) for images, s in medians[entry.id].items()),
                colours[entry.id],
                legend=entry.hardware.device,
                key=entry.id,
            )
            for entry in drawn
        ]
        made = make_plot(
            f"{name}-{kind}",
            f"{title} against the number of images",
            Axis("images at a time", is_log=True),
            Axis(label, is_log=True),
            series,
            table=numbers,
        )
        found += [made] if made else []
    return found
