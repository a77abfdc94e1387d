"""Published times beside those that the model predicts without them."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from cepheid.measure.engine.figures import OURS, REPORTED, draw_figure
from cepheid.measure.engine.study import Column, Measured, Request, Table
from cepheid.measure.studies.projection.known import (
    BEYOND,
    INSIDE,
    Family,
    Prediction,
    fit_to_all,
    leave_sizes_out,
)

GOAL = 0.2
NINE_OF_TEN = 0.9
UNKNOWNS = ("fixed_seconds", "sample_seconds", "exponent", "divided")


@dataclass(frozen=True)
class Judged:
    """The predictions of a family, each without the systems of its own size."""

    family: Family
    predictions: Sequence[Prediction]


@dataclass(frozen=True)
class Errors:
    """How far predictions of one reach miss: relative errors, without their signs."""

    number: int
    within_goal: int
    median: float
    nine_of_ten: float


def judge(families: Sequence[Family]) -> list[Judged]:
    """Predict every published time from those of other sizes."""
    return [Judged(family, leave_sizes_out(family)) for family in families]


def count_errors(judged: Sequence[Judged]) -> Mapping[str, Errors]:
    """Return the errors by reach: where other sizes have such a share of samples, and beyond."""
    found = {}
    for reach in (INSIDE, BEYOND):
        sizes = sorted(
            abs(each.error) for of in judged for each in of.predictions if each.reach == reach
        )
        if sizes:
            nine = sizes[math.ceil(NINE_OF_TEN * len(sizes)) - 1]
            within = sum(size <= GOAL for size in sizes)
            found[reach] = Errors(len(sizes), within, statistics.median(sizes), nine)
    return found


def predict_published(_: Request, families: Sequence[Family]) -> Measured:
    """Predict the published times of each family from those of its other sizes."""
    judged = judge(families)
    everything = [each for of in judged for each in of.predictions]
    worst = max(everything, key=lambda each: abs(each.error))
    errors = count_errors(judged)
    within = sum(each.within_goal for each in errors.values())
    notes = [
        f"{within} of {len(everything)} times that were not fitted are predicted within "
        f"{GOAL:.0%}; the worst is {worst.system} with {worst.known.devices:,} devices: "
        f"{worst.error:+.1%}"
    ]
    notes += [
        f"{reach} the shares of samples that the other sizes have: {each.within_goal} of "
        f"{each.number} within {GOAL:.0%}, half within {each.median:.1%}, nine of ten within "
        f"{each.nine_of_ten:.1%}"
        for reach, each in errors.items()
    ]
    fitted = {of.family.name: fit_to_all(of.family) for of in judged}
    facts = {
        "errors": {reach: asdict(each) for reach, each in errors.items()},
        "families": {
            of.family.name: {
                "title": of.family.title,
                "source": of.family.source,
                "fitted_to_all": {name: getattr(fitted[of.family.name], name) for name in UNKNOWNS},
                "systems": [
                    {**asdict(each), "error": each.error, "smaller_error": each.smaller_error}
                    for each in of.predictions
                ],
            }
            for of in judged
        },
    }
    tables = [Table(of.family.title, COLUMNS, of.predictions) for of in judged]
    rows = [row for of in judged for row in _compare_speed_ups(of.family)]
    if rows:
        tables.append(Table("Speed-up by devices that share each sample", SPEED_UPS, rows))
    return Measured(tables=tables, notes=notes, facts=facts, found=judged)


def _describe_error(error: float | None) -> str | None:
    return None if error is None else f"{error:+.1%}"


COLUMNS = (
    Column("system", "system"),
    Column("devices", lambda row: row.known.devices, "{:,}"),
    Column("batch", lambda row: row.known.batch_size, "{:,}"),
    Column("samples a replica", lambda row: row.known.share, "{:g}"),
    Column("minutes, published", lambda row: row.known.seconds / 60, "{:.3f}"),
    Column("without its size", lambda row: row.left_out / 60, "{:.3f}"),
    Column("error", lambda row: _describe_error(row.error)),
    Column("error, from smaller ones", lambda row: _describe_error(row.smaller_error)),
    Column("reach", lambda row: row.reach if row.reach == BEYOND else None),
)


@dataclass(frozen=True)
class SpeedUp:
    """How much faster a step is where devices share each sample, by whoever says so."""

    replica: int
    source: str
    value: float


def _compare_speed_ups(family: Family) -> list[SpeedUp]:
    """Return how much devices that share samples speed a step up, beside what others report."""
    known = max(family.systems.values(), key=lambda each: (each.replica, each.devices))
    if known.replica == 1:
        return []
    costs = fit_to_all(family)
    alone, shared = (
        costs.fixed_seconds + costs.samples_seconds(known.share, replica)
        for replica in (1, known.replica)
    )
    how = f"this model, fitted to all sizes, {known.share:g} samples"
    ours = SpeedUp(known.replica, how, alone / shared)
    return [ours, *(SpeedUp(known.replica, *each) for each in family.speed_ups.items())]


SPEED_UPS = (
    Column("devices a replica", "replica"),
    Column("source", "source"),
    Column("times as fast", "value", "{:.2f}"),
)


def draw_published(path: Path, _: Request, measured: Measured) -> None:
    """Draw minutes by devices, published and predicted, and the errors of the predictions."""
    with draw_figure(path, columns=2) as (figure, (left, right)):
        for number, of in enumerate(measured.found):
            colour = f"C{number}"
            devices = [each.known.devices for each in of.predictions]
            published = [each.known.seconds / 60 for each in of.predictions]
            left.plot(devices, published, "o", color=colour, fillstyle="none", markersize=8)
            predicted = [each.left_out / 60 for each in of.predictions]
            label = of.family.title.partition(",")[0]
            left.plot(devices, predicted, "x", color=colour, label=label)
            errors = [100 * each.error for each in of.predictions]
            right.plot(devices, errors, "x", color=colour)
        right.axhline(0, color=REPORTED, linewidth=1)
        right.axhspan(-100 * GOAL, 100 * GOAL, color=OURS, alpha=0.1)
        left.set(yscale="log", ylabel="minutes to the target", title="o published, x predicted")
        right.set(ylabel="% by which the prediction misses", title="band: the goal of 20%")
        left.legend()
        for axes in (left, right):
            axes.set_xscale("log", base=2)
            axes.set_xlabel("devices")
        figure.suptitle("Each published time, predicted without the systems of its size")
