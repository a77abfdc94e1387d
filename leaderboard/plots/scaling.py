"""Plots across results: time against accelerators, epochs against batch size, energy."""

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from cepheid.compliance.score.convergence import Expected, list_expected
from cepheid.compliance.score.kinds import MINUTES, format_minutes, format_number
from cepheid.leaderboard.plots.plot import (
    COLOURS,
    Axis,
    Plot,
    Series,
    make_plot,
    make_table,
    pick_best,
    pick_colour,
)
from cepheid.leaderboard.rows.entry import Entry
from cepheid.rules import rcp

DEVICES_DRAWN_MAX = 200_000  # axes end here, so that no claim can squeeze all other results
BATCH_DRAWN_MAX = 10_000_000


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


def group_families(entries: Iterable[Entry]) -> list[Family]:
    """Group results with a score by device, those on most numbers of devices first.

    Who submitted them, and with which framework, makes no difference.
    """
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.is_scored:
            groups.setdefault(entry.hardware.device, []).append(entry)
    made = [
        Family(
            device,
            tuple((entry.devices, entry.standing.cost) for entry in members),
            tuple(entry.id for entry in members),
        )
        for device, members in groups.items()
    ]
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
    numbers = {number for family in families for number in family.best}
    if len(numbers) < 2:
        return None
    series, rows = [], []
    for place, family in enumerate(families):
        colour = colours[family.label] if colours else pick_colour(place)
        key = " ".join(family.ids) or family.label
        points = tuple((float(number), cost) for number, cost in family.costs)
        (first, base), *_ = family.best.items()
        ideal = tuple((float(n), base * first / n) for n in family.best)
        series.append(Series(family.label, points, colour, key=key, keys=family.ids, is_best=True))
        series.append(
            Series("", ideal, colour, "dashed", "none", legend="", key=key, is_derived=True)
        )
        for count, cost in family.best.items():
            efficiency = family.find_efficiency(count, cost)
            rows.append(
                (
                    family.label,
                    f"{count:,}",
                    format_minutes(cost),
                    f"{base / cost:.2f}×",
                    f"{100 * efficiency:.0f}%",
                )
            )
    return make_plot(
        f"{name}-scaling",
        f"Time against {what}",
        Axis(what, is_log=True, limit=DEVICES_DRAWN_MAX, values=tuple(map(float, numbers))),
        Axis(unit, is_log=True),
        series,
        table=make_table((" ", what, unit, "speed-up", "efficiency"), rows),
        description="Lines join the fastest result on each number of devices; dotted lines show "
        "ideal scaling: twice as many devices, half the time.",
    )


def plot_convergence(
    entries: Sequence[Entry], colours: Mapping[str, int], name: str
) -> Plot | None:
    """Plot epochs or samples to the target against batch size, with those of the reference."""
    definition = next((entry.definition for entry in entries if entry.definition), None)
    samples_in_epoch = definition.train_samples if definition else 1
    series, rows = [], []
    for entry in entries:
        values = [
            run.summary.crossing / samples_in_epoch
            if definition and run.summary.crossing
            else run.summary.epochs
            for run in entry.runs
            if run.summary.converged
        ]
        known = [value for value in values if value is not None]
        if entry.id not in colours or entry.batch_size is None or not known:
            continue
        median, pair = statistics.median(known), (min(known), max(known))
        point = ((float(entry.batch_size), median),)
        series.append(
            Series(
                entry.name,
                point,
                colours[entry.id],
                "none",
                ends=(pair,),
                legend=entry.hardware.device,
                key=entry.id,
            )
        )
        row = (entry.name, f"{entry.batch_size:,}", format_number(median))
        rows.append((*row, f"{format_number(pair[0])} to {format_number(pair[1])}"))
    known_points = load_reference_points(entries[0]) if definition else ()
    reference = tuple((float(p.batch_size), p.mean / samples_in_epoch) for p in known_points)
    if reference:
        series.append(Series("reference (T21)", reference, COLOURS, "dashed"))
        rows += [
            ("reference (T21)", f"{int(b):,}", format_number(value), "") for b, value in reference
        ]
    sizes = tuple({point[0] for one in series for point in one.points})
    if not rows or len(sizes) < 2:
        return None
    return make_plot(
        f"{name}-epochs",
        "Epochs to the targets against batch size",
        Axis("global batch size", is_log=True, limit=BATCH_DRAWN_MAX, values=sizes),
        Axis("epochs to the targets"),
        series,
        table=make_table(("result", "batch size", "epochs, median", "of the runs"), rows),
        description="Points are medians over the converged runs. Bars reach from the lowest to the "
        "highest run.",
    )


def load_reference_points(entry: Entry) -> tuple[Expected, ...]:
    """Return the samples that the reference needs at each batch size, if they were measured."""
    definition, points = entry.definition, _load_points(entry)
    return list_expected(points, definition) if definition and points else ()


def _load_points(entry: Entry) -> rcp.ReferencePoints | None:
    """Load the reference points of a result's benchmark in its round."""
    known = entry.definition
    if known is None:
        return None
    return rcp.load(known.name, known.scale, entry.judged.judged_in.name)


def plot_energy(entries: Sequence[Entry], colours: Mapping[str, int], name: str) -> Plot | None:
    """Plot the energy of a run against its time, where it was measured, with the Pareto front."""
    measured = [
        (entry, entry.kilojoules, _find_minutes(entry))
        for entry in entries
        if entry.kilojoules is not None
    ]
    points = {
        entry.id: (time, energy)
        for entry, energy, time in measured
        if time is not None and energy is not None
    }
    series = [
        Series(
            entry.name,
            (points[entry.id],),
            colours[entry.id],
            "none",
            legend=entry.hardware.device,
            key=entry.id,
        )
        for entry, _, _ in measured
        if entry.id in points
    ]
    front = find_front(points.values())
    if len(front) > 1:
        label = "no other is faster and needs less"
        stairs = _make_stairs(front)
        series.append(Series(label, stairs, COLOURS, "dashed", "none", is_derived=True))
    rows = [
        (entry.name, format_number(energy), entry.energy.not_measured)
        for entry, energy, _ in measured
        if entry.energy and energy is not None
    ]
    return make_plot(
        f"{name}-energy",
        "Energy of a run against its time",
        Axis("minutes"),
        Axis("kJ a run"),
        series,
        table=make_table(("result", "kJ a run", "not measured"), rows),
        description="The dashed line joins the results that no other beats in both. Energy is "
        "never ranked, because sensors differ in what they leave out (rule T23).",
    )


def find_front(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Find the Pareto front: the points that no other beats in both numbers, from the left."""
    front: list[tuple[float, float]] = []
    for point in sorted(points):
        if not front or point[1] < front[-1][1]:
            front.append(point)
    return front


def _make_stairs(front: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    corners = [front[0]]
    for before, after in itertools.pairwise(front):
        corners += [(after[0], before[1]), after]
    return tuple(corners)


def _find_minutes(entry: Entry) -> float | None:
    score = entry.standing.score
    return score.estimates[MINUTES].mean if score and MINUTES in score.estimates else None


def plot_rcp(entry: Entry, colour: int) -> Plot | None:
    """Plot rule T21: samples of the reference, the least plausible mean, and this result."""
    definition, test = entry.definition, entry.judged.convergence
    if definition is None or test is None:
        return None
    known = load_reference_points(entry)
    points = _load_points(entry)
    if not known or points is None:
        return None
    runs = tuple(
        (float(point.batch_size), float(count))
        for point in points.points
        if point.is_usable
        for count in point.crossings or point.samples
    )
    own = tuple(
        (float(test.batch_size), r.summary.crossing) for r in entry.runs if r.summary.crossing
    )
    mean = ((float(test.batch_size), test.samples),)
    limits = [one.find_limits(test.runs) for one in known]
    means = _make_line(known, [one.mean for one in known])
    least, greatest = (_make_line(known, ends) for ends in zip(*limits, strict=True))
    series = [
        Series("runs of the reference", runs, COLOURS, "none"),
        Series("mean of the reference", means, COLOURS, mark="none"),
        Series("least and greatest plausible mean", least, COLOURS, "dashed", "none"),
        Series("greatest plausible mean", greatest, COLOURS, "dashed", "none", legend=""),
        Series("runs of this result", own, colour, "none"),
        Series("mean of this result", mean, colour, "none", "cross"),
    ]  # fmt: skip
    rows = [
        ("reference", f"{one.batch_size:,}", f"{one.mean:,.0f}", f"{low:,.0f} to {high:,.0f}")
        for one, (low, high) in zip(known, limits, strict=True)
    ]
    rows.append(("this result", f"{test.batch_size:,}", f"{test.samples:,.0f}", ""))
    sizes = {point[0] for one in series for point in one.points}
    return make_plot(
        "rcp",
        "Samples to the targets, compared with the reference",
        Axis("global batch size", is_log=True, values=tuple(sizes)),
        Axis("samples to the targets", is_log=False),
        series,
        table=make_table(("", "batch size", "mean, samples", "plausible means"), rows),
        description=f"Rule T21: {test.verdict}. A mean below the lower dashed line is rejected. Of "
        "one above the upper line, the score is made of its own samples.",
    )


def _make_line(
    known: Sequence[Expected], values: Sequence[float]
) -> tuple[tuple[float, float], ...]:
    return tuple((float(p.batch_size), value) for p, value in zip(known, values, strict=True))
