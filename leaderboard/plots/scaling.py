"""Plots across results: time against accelerators, epochs against batch size, energy."""

import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cepheid.compliance.score.convergence import Expected, list_expected
from cepheid.compliance.score.kinds import MINUTES, format_minutes, format_number
from cepheid.leaderboard.plots.plot import (
    COLOURS,
    Axis,
    Plot,
    Series,
    make_plot,
    make_table,
    pick_colour,
)
from cepheid.leaderboard.rows.entry import Entry
from cepheid.rules import rcp

DEVICES_DRAWN_MAX = 200_000  # axes end here, so that no claim can squeeze all other results
BATCH_DRAWN_MAX = 10_000_000


@dataclass(frozen=True)
class Family:
    """Results on different numbers of the same device; value by number, the best of each.

    ``ids`` are the permalinks of these results, by number; numbers of papers have none.
    """

    label: str
    values: Mapping[int, float]
    ids: Mapping[int, str] = field(default_factory=dict)


def group_families(entries: Sequence[Entry]) -> list[Family]:
    """Group results with a score by submitter, device and framework, the largest first."""
    families: dict[str, dict[int, tuple[float, str]]] = {}
    for entry in entries:
        score = entry.standing.score
        if score is None or not score.is_score:
            continue
        value, kind = score.main.mean, entry.kind
        best = families.setdefault(name_family(entry), {})
        if entry.devices not in best or kind.cost(value) < kind.cost(best[entry.devices][0]):
            best[entry.devices] = value, entry.id
    made = [
        Family(
            label,
            {number: best[number][0] for number in sorted(best)},
            {number: best[number][1] for number in sorted(best)},
        )
        for label, best in families.items()
    ]
    return sorted(made, key=lambda family: (-len(family.values), family.label))


def name_family(entry: Entry) -> str:
    """Name what a family has in common: submitter, device and framework."""
    hardware = entry.hardware
    device = hardware.accelerator if hardware.accelerators else hardware.processor
    return ", ".join(filter(None, (entry.names.submitter, device, hardware.framework)))


def plot_scaling(made: Sequence[Family], name: str, what: str, unit: str) -> Plot | None:
    """Plot time against the number of devices, with the ideal line of each family.

    ``what`` is what the x axis counts. Returns None where no family has two numbers of devices.
    """
    drawn = [family for family in made if len(family.values) > 1][:COLOURS]
    if not drawn:
        return None
    series, rows = [], []
    for number, family in enumerate(drawn):
        (first, base), *_ = family.values.items()
        ideal = tuple((n, base * first / n) for n in family.values)
        colour, keys = pick_colour(number), tuple(family.ids.values())
        key = " ".join(keys)
        points = tuple(family.values.items())
        series.append(Series(family.label, points, colour, key=key, keys=keys))
        series.append(
            Series(family.label, ideal, colour, "dashed", "none", in_legend=False, key=key)
        )
        for count, value in family.values.items():
            speed_up = base / value
            rows.append(
                (
                    family.label,
                    f"{count:,}",
                    format_minutes(value),
                    f"{speed_up:.2f}×",
                    f"{100 * speed_up * first / count:.0f}%",
                )
            )
    return make_plot(
        f"{name}-scaling",
        f"Time against {what}",
        Axis(
            what,
            is_log=True,
            limit=DEVICES_DRAWN_MAX,
            values=tuple({float(n) for f in drawn for n in f.values}),
        ),
        Axis(unit, is_log=True),
        series,
        table=make_table((" ", what, unit, "speed-up", "efficiency"), rows),
        description="The dashed lines show ideal scaling: twice as many devices, half the time.",
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
        number = colours[entry.id]
        point = ((float(entry.batch_size), median),)
        series.append(
            Series(
                entry.name,
                point,
                number,
                "none",
                ends=(pair,),
                in_legend=number < COLOURS,
                key=entry.id,
            )
        )
        if number < COLOURS:
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
        Series(entry.name, (points[entry.id],), colours[entry.id], "none", key=entry.id)
        for entry, _, _ in measured
        if entry.id in points
    ]
    front = find_front(points.values())
    if len(front) > 1:
        label = "no other is faster and needs less"
        series.append(Series(label, _make_stairs(front), COLOURS, "dashed", "none"))
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


def plot_rcp(entry: Entry) -> Plot | None:
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
        Series("least and greatest plausible mean", least, 7, "dashed", "none"),
        Series("greatest plausible mean", greatest, 7, "dashed", "none", in_legend=False),
        Series("runs of this result", own, 0, "none"),
        Series("mean of this result", mean, 0, "none", "cross"),
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
