"""The plots of results: quality against time, and time, epochs and energy across results."""

import itertools
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cepheid.compliance.score.convergence import Expected, list_expected
from cepheid.compliance.score.kinds import GENERATION, Unit, format_minutes
from cepheid.leaderboard.plots.plot import (
    GREY,
    LOG_RATIO,
    Axis,
    Guide,
    Plot,
    Point,
    Series,
    Table,
    make_plot,
    make_table,
    pick_best,
    pick_colour,
)
from cepheid.leaderboard.rows.cells import choose_unit, name_unit
from cepheid.leaderboard.rows.entry import Entry, Run, group_entries
from cepheid.rules import rcp
from cepheid.rules.definition import Definition
from cepheid.rules.metrics import QualityTarget

RESULTS_MAX = 8  # drawn in one plot, the fastest
RESULTS_KEPT = 20  # for readers who filter
RUNS_MAX = 12  # lines in one plot; of more runs, medians are drawn
DEVICES_DRAWN_MAX = 200_000  # axes end here, so that no claim can squeeze all other results
BATCH_DRAWN_MAX = 10_000_000


def make_series(
    entry: Entry, colours: Mapping[str, int], points: Iterable[Point], **more: Any
) -> Series:
    """Make a series of a result, in the colour of its device."""
    colour, device = colours[entry.id], entry.hardware.device
    return Series(entry.name, tuple(points), colour, in_legend=device, key=entry.id, **more)


def plot_results(
    entries: Sequence[Entry], colours: Mapping[str, int], definition: Definition | None, name: str
) -> Iterator[Plot | None]:
    """Plot the results of a division, or one result alone, as suits its kind of benchmark."""
    kept = [entry for entry in entries if entry.id in colours][:RESULTS_KEPT]
    unit = choose_unit(entries) or Unit("min")
    if entries[0].kind is GENERATION:
        yield from plot_generation(kept[:RESULTS_MAX], colours, name)
    else:
        for target in definition.quality if definition else ():
            yield plot_quality(kept, colours, target, f"{name}-{target.metric}", unit)


def plot_quality(
    kept: Sequence[Entry], colours: Mapping[str, int], target: QualityTarget, name: str, unit: Unit
) -> Plot | None:
    """Plot a metric against time: a line for each run, or medians and bands of many runs."""
    drawn, metric = kept[:RESULTS_MAX], target.metric
    runs = [(entry, run) for entry in drawn for run in entry.runs]
    ends = [run.course.curve[-1].seconds for _, run in runs if run.course.curve]
    is_log = bool(ends) and max(ends) > LOG_RATIO * min(ends) > 0
    more: list[Series] = []
    if len(runs) > RUNS_MAX:
        medians = [_make_median(entry, metric, colours, unit) for entry in kept]
        series, more = medians[:RESULTS_MAX], medians[RESULTS_MAX:]
        note = "Lines are medians over the runs of a result, bands all of its runs."
    else:
        series = []
        for entry, run in runs:
            points = ((time * unit.factor, value) for time, value in list_points(run, metric))
            mark = "none" if run.summary.converged else "cross_at_end"
            series.append(make_series(entry, colours, points, mark=mark))
        note = "Each line is one run; a cross at its end: it did not converge."
    if len(kept) > len(drawn):
        note += f" The fastest {len(drawn)} results."
    return make_plot(
        name,
        f"{metric} against time",
        Axis(f"{name_unit(unit)} since run_start", is_log=is_log, from_zero=True),
        Axis(f"{metric}, {target.better} is better", is_log=False),
        series,
        guides=[Guide(target.target, f"target {target.target:g}")],
        table=_tabulate_numbers(drawn, metric, unit),
        more=more,
        note=note,
    )


def list_points(run: Run, metric: str) -> list[Point]:
    """List the minutes and values of the evaluations of a run."""
    curve = run.course.curve
    return [(p.seconds / 60, p.metrics[metric]) for p in curve if metric in p.metrics]


def _make_median(entry: Entry, metric: str, colours: Mapping[str, int], unit: Unit) -> Series:
    """Make the median over the runs at each evaluation that most of them made, and their band."""
    points, band = [], []
    for made in itertools.zip_longest(*(list_points(run, metric) for run in entry.runs)):
        here = [point for point in made if point is not None]
        if 2 * len(here) <= len(entry.runs):
            break
        time = unit.factor * statistics.median(point[0] for point in here)
        values = [point[1] for point in here]
        points.append((time, statistics.median(values)))
        band.append((time, min(values), max(values)))
    return make_series(entry, colours, points, mark="none", band=tuple(band))


def _tabulate_numbers(entries: Sequence[Entry], metric: str, unit: Unit) -> Table:
    rows = []
    for name, run in [(entry.name, run) for entry in entries for run in entry.runs]:
        for point in run.course.curve:
            if metric in point.metrics:
                time = format_minutes(point.seconds / 60 * unit.factor)
                samples, value = f"{point.samples:,}", f"{point.metrics[metric]:.4g}"
                rows.append((name, run.summary.number, time, samples, value))
    return make_table(("result", "run", name_unit(unit), "samples", metric), rows)


def plot_generation(
    entries: Sequence[Entry], colours: Mapping[str, int], name: str
) -> Iterator[Plot | None]:
    """Plot latency and images per second against the number of images generated at a time."""
    kinds = (
        ("latency", "Latency", "seconds, median", lambda images, seconds: seconds),
        ("throughput", "Images per second", "images per second", lambda images, s: images / s),
    )
    for kind, title, label, find_value in kinds:
        series = []
        for entry in entries:
            timings = [timing for run in entry.runs for timing in run.course.timings]
            seconds: dict[int, list[float]] = {}
            for timing in sorted(timings, key=lambda timing: timing.images):
                seconds.setdefault(timing.images, []).append(timing.seconds)
            medians = ((images, statistics.median(many)) for images, many in seconds.items())
            points = ((float(images), find_value(images, s)) for images, s in medians)
            series.append(make_series(entry, colours, points))
        x, y = Axis("images at a time", is_log=True), Axis(label, is_log=True)
        yield make_plot(f"{name}-{kind}", f"{title} against the number of images", x, y, series)


@dataclass(frozen=True)
class Family:
    """Results on different numbers of one device; ``costs`` has number and cost of each.

    ``ids`` are their permalinks, in the same order; numbers of papers have none.
    """

    label: str
    costs: tuple[tuple[int, float], ...]
    ids: tuple[str, ...] = ()

    @cached_property
    def best(self) -> Mapping[int, float]:
        """The least cost for each number of devices, the smallest number first."""
        return {int(number): cost for number, cost in pick_best(self.costs)}

    def find_efficiency(self, number: int, cost: float) -> float:
        """Return the speed-up over the best smallest system for each time as many devices."""
        (first, base), *_ = self.best.items()
        return base / cost * first / number


def group_families(entries: Iterable[Entry], unit: Unit | None = None) -> list[Family]:
    """Group results with a score by device, those on most numbers of devices first.

    Costs are in ``unit``, else in minutes. Submitter and framework make no difference.
    """
    scored = (entry for entry in entries if entry.is_scored)
    factor = unit.factor if unit else 1.0
    made = []
    for device, members in group_entries(scored, lambda entry: entry.hardware.device).items():
        costs = tuple((entry.devices, entry.standing.cost * factor) for entry in members)
        made.append(Family(device, costs, tuple(entry.id for entry in members)))
    return sorted(made, key=lambda family: (-len(family.best), family.label))


def plot_scaling(
    families: Sequence[Family],
    name: str,
    what: str,
    unit: str,
    colours: Mapping[str, int] | None = None,
) -> Plot | None:
    """Plot time against the number of devices: every result, and the ideal line of each family.

    ``what`` is what the x axis counts, ``colours`` has that of each device. Returns None where
    all results are on one number of devices.
    """
    numbers = {float(number) for family in families for number in family.best}
    if len(numbers) < 2:
        return None
    series, rows = [], []
    for place, family in enumerate(families):
        colour = colours[family.label] if colours else pick_colour(place)
        points = tuple((float(number), cost) for number, cost in family.costs)
        key = " ".join(family.ids) or family.label
        series.append(Series(family.label, points, colour, key=key, keys=family.ids, is_best=True))
        base = next(iter(family.best.values()))
        for count, cost in family.best.items():
            efficiency = f"{100 * family.find_efficiency(count, cost):.0f}%"
            numbers_of = f"{count:,}", format_minutes(cost), f"{base / cost:.2f}×", efficiency
            rows.append((family.label, *numbers_of))
    return make_plot(
        f"{name}-scaling",
        f"Time against {what}",
        Axis(what, is_log=True, limit=DEVICES_DRAWN_MAX, values=tuple(numbers)),
        Axis(unit, is_log=True),
        series,
        table=make_table((" ", what, unit, "speed-up", "efficiency"), rows),
        note="Lines join the fastest result on each number of devices; dotted lines show "
        "ideal scaling: twice as many devices, half the time.",
    )


def plot_convergence(
    entries: Sequence[Entry], colours: Mapping[str, int], name: str
) -> Plot | None:
    """Plot epochs or samples to the target against batch size, with those of the reference."""
    definition = entries[0].definition if entries else None
    samples_in_epoch = definition.train_samples if definition else 1
    series = []
    for entry in (one for one in entries if one.id in colours and one.batch_size is not None):
        runs = [run.summary for run in entry.runs if run.summary.converged]
        epochs = [
            run.crossing / samples_in_epoch if definition and run.crossing else run.epochs
            for run in runs
        ]
        known = [value for value in epochs if value is not None]
        if known:
            point = (float(entry.batch_size or 0), statistics.median(known))
            ends = ((min(known), max(known)),)
            series.append(make_series(entry, colours, [point], line="none", ends=ends))
    expected = load_reference_points(entries[0]) if series else ()
    if expected:
        points = tuple((float(one.batch_size), one.mean / samples_in_epoch) for one in expected)
        series.append(Series("reference (T21)", points, GREY, "dashed"))
    sizes = tuple({point[0] for one in series for point in one.points})
    if len(sizes) < 2:
        return None
    return make_plot(
        f"{name}-epochs",
        "Epochs to the targets against batch size",
        Axis("global batch size", is_log=True, limit=BATCH_DRAWN_MAX, values=sizes),
        Axis("epochs to the targets"),
        series,
        note="Points are medians over the converged runs. Bars reach from the lowest to the "
        "highest run.",
    )


def load_reference_points(entry: Entry) -> tuple[Expected, ...]:
    """Return the samples that the reference needs at each batch size, if they were measured."""
    points = _load_points(entry)
    return list_expected(points, entry.definition) if entry.definition and points else ()


def _load_points(entry: Entry) -> rcp.ReferencePoints | None:
    known = entry.definition
    return rcp.load(known.name, known.scale, entry.judged.judged_in.name) if known else None


def plot_energy(
    entries: Sequence[Entry], colours: Mapping[str, int], name: str, unit: Unit
) -> Plot | None:
    """Plot the energy of a run against its time, where it was measured, with the Pareto front."""
    series = [
        make_series(entry, colours, [(time.mean * unit.factor, entry.kilojoules)], line="none")
        for entry in entries
        if entry.kilojoules is not None and (time := entry.time)
    ]
    return make_plot(
        f"{name}-energy",
        "Energy of a run against its time",
        Axis(name_unit(unit)),
        Axis("kJ a run"),
        series,
        front="no other is faster and needs less",
        note="The dashed line joins the results that no other beats in both. Energy is "
        "never ranked, because sensors differ in what they leave out (rule T23).",
    )


def plot_rcp(entry: Entry, colour: int) -> Plot | None:
    """Plot rule T21: samples of the reference, the least plausible mean, and this result."""
    test, points = entry.judged.convergence, _load_points(entry)
    known = load_reference_points(entry)
    if test is None or points is None or not known:
        return None
    size = float(test.batch_size)
    usable = [point for point in points.points if point.is_usable]
    runs = tuple((float(p.batch_size), float(n)) for p in usable for n in p.crossings or p.samples)
    own = tuple((size, r.summary.crossing) for r in entry.runs if r.summary.crossing)
    limits = [one.find_limits(test.runs) for one in known]
    means = _make_line(known, [one.mean for one in known])
    least, greatest = (_make_line(known, ends) for ends in zip(*limits, strict=True))
    series = [  # the first lies over the others
        Series("mean of this result", ((size, test.samples),), colour, "none", "cross"),
        Series("runs of this result", own, colour, "none"),
        Series("runs of the reference", runs, GREY, "none"),
        Series("mean of the reference", means, GREY, mark="none"),
        Series("least and greatest plausible mean", least, GREY, "dashed", "none"),
        Series("greatest plausible mean", greatest, GREY, "dashed", "none", in_legend=""),
    ]
    sizes = {point[0] for one in series for point in one.points}
    return make_plot(
        "rcp",
        "Samples to the targets, compared with the reference",
        Axis("global batch size", is_log=True, values=tuple(sizes)),
        Axis("samples to the targets", is_log=False),
        series,
        note=f"Rule T21: {test.verdict}. A mean below the lower dotted line is rejected. Of "
        "one above the upper line, the score is made of its own samples.",
    )


def _make_line(known: Sequence[Expected], values: Sequence[float]) -> tuple[Point, ...]:
    return tuple((float(p.batch_size), value) for p, value in zip(known, values, strict=True))
