"""How long a device that nobody has measured trains: `--like`, from a published family.

A device is told by its peak and its memory bandwidth. Between the published device and this one,
work that arithmetic bounds takes as long as the peaks say, and work that memory bounds as long as
the bandwidths say. Nobody knows the mixture, so both are the ends of a range.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cepheid.measure.engine.figures import OURS, draw_figure
from cepheid.measure.engine.options import read_command
from cepheid.measure.engine.study import Column, Measured, Request, Study, Table
from cepheid.measure.studies.projection import cost_model
from cepheid.measure.studies.projection.cost_model import Costs, Network, find_link, read_links
from cepheid.measure.studies.projection.known import (
    BEYOND,
    INSIDE,
    Family,
    KnownTime,
    fit_to_all,
    list_known,
    load_families,
)
from cepheid.measure.studies.projection.published import (
    Errors,
    count_errors,
    draw_published,
    judge,
    predict_published,
)
from cepheid.rules import systems
from cepheid.rules.errors import UserError, did_you_mean

HOUR, KILOWATT_HOUR = 3600, 3.6e6


@dataclass(frozen=True)
class Speed:
    """The peak of a device in 10^12 operations a second, and its memory in 10^9 bytes a second."""

    tflops: float
    gigabytes_per_second: float


@dataclass(frozen=True)
class Span:
    """A time in seconds: the shortest, the likely one and the longest."""

    low: float
    likely: float
    high: float

    def times(self, factor: float) -> "Span":
        """Return the span, each of its ends so many times as large."""
        return Span(self.low * factor, self.likely * factor, self.high * factor)


@dataclass(frozen=True)
class Answer:
    """How long a number of devices trains, what they draw in kWh, and what they cost."""

    devices: int
    batch_size: int
    epochs: float
    reach: str
    seconds: Span
    kilowatt_hours: Span | None
    cost: Span | None


@dataclass(frozen=True)
class Plan:
    """The published family, the device that is asked for, and its network."""

    base: Family
    others: Sequence[Family]
    speed: Speed
    network: Network


def find_device(family: Family) -> systems.Device | None:
    """Return the row of a family's device in ``rules/devices.yaml``, if it has one."""
    return next((each for each in systems.load_devices() if each.device == family.device), None)


def find_speed(family: Family) -> Speed:
    """Return peak and bandwidth of a family's device. Raises UserError where they are unknown."""
    known = find_device(family)
    if known is None or known.memory_gb_per_second is None:
        raise UserError(
            f"--like {family.name}: rules/devices.yaml has no peak and bandwidth of "
            f"{family.device}; fix: choose another family"
        )
    return Speed(known.peak_tflops[family.precision], known.memory_gb_per_second)


def plan_device(request: Request) -> Plan:
    """Read what is known. Raises UserError for an unknown family, link or number."""
    asked = request.arguments
    if asked.idle_watts is not None and asked.idle_watts > (asked.watts or 0):
        raise UserError(
            f"--idle-watts {asked.idle_watts:g}: expected --watts, and at least as much; "
            "a device that waits draws no more than one that computes"
        )
    families = {family.name: family for family in load_families(asked.benchmark)}
    if asked.like not in families:
        raise UserError(
            f"--like {asked.like}: no such family{did_you_mean(asked.like, families)}; "
            f"published for {asked.benchmark}: {', '.join(families)}"
        )
    base = families.pop(asked.like)
    own = find_speed(base)
    speed = Speed(
        own.tflops if asked.peak is None else asked.peak,
        own.gigabytes_per_second if asked.bandwidth is None else asked.bandwidth,
    )
    within = find_link(asked.within) if asked.within else base.network.within
    between = find_link(asked.between) if asked.between else base.network.between
    per_node = asked.devices_per_node or base.network.devices_per_node
    network = Network(within, between, per_node, asked.sum or base.network.shape)
    return Plan(base, list(families.values()), speed, network)


def scale(costs: Costs, factors: Sequence[float]) -> list[Costs]:
    """Return the costs of a device that takes so many times as long: at least, likely, at most.

    Nobody knows whether the seconds of a step, however many samples it has, are the device's or its
    host's: at least they shrink as the device is faster, and at most they grow as it is slower.
    """
    low, likely, high = factors
    return [
        replace(
            costs,
            fixed_seconds=of_step * costs.fixed_seconds,
            sample_seconds=factor * costs.sample_seconds,
        )
        for factor, of_step in ((low, min(low, 1)), (likely, likely), (high, max(high, 1)))
    ]


def compare(base: Speed, other: Speed) -> tuple[float, float, float]:
    """Return how many times as long another device takes: at least, likely, and at most."""
    by_peak = base.tflops / other.tflops
    by_memory = base.gigabytes_per_second / other.gigabytes_per_second
    return min(by_peak, by_memory), math.sqrt(by_peak * by_memory), max(by_peak, by_memory)


def span(seconds: Sequence[float], miss: float) -> Span:
    """Return a span that is wider by what predictions of published times miss."""
    low, likely, high = seconds
    return Span(low / (1 + miss), likely, high / (1 - miss) if miss < 1 else math.inf)


def find_watts(busy: float, idle: float, efficiency: float) -> float:
    """Return what a device draws that computes a part of its time and waits for the rest.

    Published power of one, 8 and 64 nodes follows it within 7% (docs/projections/energy.json).
    """
    return idle + (busy - idle) * efficiency


def answer(plan: Plan, costs: Costs, errors: Mapping[str, Errors], asked: Any) -> list[Answer]:
    """Return how long each number of devices trains, as far as every one gets work."""
    base = plan.base
    shares = [known.share for known in base.systems.values()]
    least, most = min(shares), max(shares)
    batch = asked.batch_size or max(1, math.floor(most))
    found = [
        cost_model.project(scaled, plan.network, base.training, asked.devices, batch, min(1, least))
        for scaled in scale(costs, compare(find_speed(base), plan.speed))
    ]
    worst = max(errors.values(), key=lambda each: each.nine_of_ten)
    answers = []
    for rows in zip(*found, strict=True):
        devices, size = rows[1].devices, rows[1].batch_size
        reach = INSIDE if least <= size / devices <= most else BEYOND
        miss = errors.get(reach, worst).nine_of_ten
        time = span([each.seconds for each in rows], miss)
        idle = asked.watts if asked.idle_watts is None else asked.idle_watts
        watts = find_watts(asked.watts, idle, rows[1].efficiency) if asked.watts else 0.0
        answers.append(
            Answer(
                devices, size, rows[1].epochs, reach, time,
                time.times(devices * watts / KILOWATT_HOUR) if watts else None,
                time.times(devices * asked.price / HOUR) if asked.price else None,
            )
        )  # fmt: skip
    return answers


@dataclass(frozen=True)
class Check:
    """A published time of another device, beside what this way of projecting says of it."""

    family: Family
    system: str
    known: KnownTime
    seconds: Span

    @property
    def is_inside(self) -> bool:
        """Whether the published time lies in the span."""
        return self.seconds.low <= self.known.seconds <= self.seconds.high

    @property
    def error(self) -> float:
        """The likely time over the published one, minus 1."""
        return self.seconds.likely / self.known.seconds - 1


def check_others(plan: Plan, costs: Costs, errors: Mapping[str, Errors]) -> list[Check]:
    """Predict the published times of the other devices from the costs of this family alone."""
    miss = errors[INSIDE].nine_of_ten if INSIDE in errors else errors[BEYOND].nine_of_ten
    checks = []
    for family in plan.others:
        factors = compare(find_speed(plan.base), find_speed(family))
        size, overlap = family.costs.gradient_bytes, family.costs.overlap
        scaled = [
            replace(each, gradient_bytes=size, overlap=overlap) for each in scale(costs, factors)
        ]
        for name, known in family.systems.items():
            seconds = [family.predict(each, known) for each in scaled]
            checks.append(Check(family, name, known, span(seconds, miss)))
    return checks


def answer_device(request: Request, plan: Plan) -> Measured:
    """Answer how long so many of these devices train, and how well such answers do."""
    base = plan.base
    errors = count_errors(judge([base, *plan.others]))
    costs = fit_to_all(base)
    rows = answer(plan, costs, errors, request.arguments)
    count = base.training.train_samples
    alike = [
        each
        for each in plan.others
        if each.training.train_samples == count and find_device(each) is not None
    ]
    checks = check_others(replace(plan, others=alike), costs, errors)
    title = (
        f"{request.arguments.benchmark} on devices with {plan.speed.tflops:g} TFLOP/s and "
        f"{plan.speed.gigabytes_per_second:g} GB/s, from the published times of {base.title}"
    )
    notes = []
    if len(rows) < len(request.arguments.devices):
        more = request.arguments.devices[len(rows)]
        notes.append(f"{more:,} devices and more would have less work each than any published one")
    if checks:
        inside = sum(check.is_inside for check in checks)
        worst = max(checks, key=lambda check: abs(check.error))
        notes.append(
            f"{inside} of {len(checks)} published times of other devices lie in the range that "
            f"this family gives for them; the likely time misses most for {worst.system}: "
            f"{worst.error:+.0%}"
        )
    facts = {
        "like": base.name,
        "speed": asdict(plan.speed),
        "network": asdict(plan.network),
        "answers": [asdict(row) for row in rows],
        "checks": [
            {"family": each.family.name, "system": each.system, "devices": each.known.devices,
             "published_seconds": each.known.seconds, **asdict(each.seconds)}
            for each in checks
        ],
    }  # fmt: skip
    tables = [Table(title, COLUMNS, rows)]
    if checks:
        tables.append(Table("Other published devices, from this family alone", CHECKS, checks))
    return Measured(tables=tables, notes=notes, facts=facts, found=(title, rows))


def _describe_span(attribute: str, unit: float, row: Answer) -> str | None:
    found = getattr(row, attribute)
    if found is None:
        return None
    low, likely, high = (f"{each / unit:,.3g}" for each in (found.low, found.likely, found.high))
    return f"{likely} ({low} to {high})"


COLUMNS = (
    Column("devices", "devices", "{:,}"),
    Column("batch", "batch_size", "{:,}"),
    Column("epochs", "epochs", "{:.1f}"),
    Column("minutes", partial(_describe_span, "seconds", 60)),
    Column("kWh", partial(_describe_span, "kilowatt_hours", 1)),
    Column("cost", partial(_describe_span, "cost", 1)),
    Column("reach", lambda row: row.reach if row.reach == BEYOND else None),
)
CHECKS = (
    Column("family", lambda row: row.family.name),
    Column("system", "system"),
    Column("devices", lambda row: row.known.devices, "{:,}"),
    Column("minutes, published", lambda row: row.known.seconds / 60, "{:.3f}"),
    Column("likely (range)", partial(_describe_span, "seconds", 60)),
    Column("in the range", lambda row: "yes" if row.is_inside else "no"),
)


def draw_device(path: Path, _: Request, measured: Measured) -> None:
    """Draw the likely minutes by devices, in their range."""
    title, rows = measured.found
    with draw_figure(path, columns=1, column_inches=6) as (figure, (axes,)):
        devices = [row.devices for row in rows]
        minutes = [row.seconds.times(1 / 60) for row in rows]
        low, high = [each.low for each in minutes], [each.high for each in minutes]
        axes.fill_between(devices, low, high, color=OURS, alpha=0.2)
        axes.plot(devices, [each.likely for each in minutes], "o-", color=OURS)
        axes.set_xscale("log", base=2)
        axes.set(yscale="log", xlabel="devices", ylabel="minutes to the target")
        figure.suptitle(title, fontsize="small", wrap=True)


LIKE = Study("like", plan_device, answer_device, figure=draw_device)
STUDY = Study(
    "project",
    lambda request: load_families(request.arguments.benchmark),
    predict_published,
    figure=draw_published,
    others=(LIKE,),
    **read_command(
        "project", benchmarks=", ".join(sorted(list_known())), links=", ".join(read_links())
    ),
)
