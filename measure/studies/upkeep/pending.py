"""`cepheid measure pending`: which recorded evidence is stale or missing, and make it again."""

import math
import os
import statistics
from collections.abc import Sequence
from concurrent.futures import as_completed
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cepheid.benchmarks import registry
from cepheid.measure.engine import own_process, provenance, trainings
from cepheid.measure.engine.options import read_command
from cepheid.measure.engine.study import Column, Measured, Request, Study
from cepheid.measure.engine.trainings import CORRECT, Training
from cepheid.measure.studies import convergence_points
from cepheid.measure.studies.shallow import baselines
from cepheid.measure.studies.upkeep import records
from cepheid.measure.studies.upkeep.records import STAGES, Wanted
from cepheid.reference.run.config import configure
from cepheid.reference.session.observer import prepare_data
from cepheid.rules import definition as definitions
from cepheid.rules import evidence, extras, rcp
from cepheid.rules.definition import Definition
from cepheid.rules.evidence import Curve
from cepheid.rules.rcp import BATCH_SIZE

if TYPE_CHECKING:
    from cepheid.measure.engine.study import OpenDisplay
    from cepheid.reference.run.config import RunConfig
    from cepheid.reference.session.observer import Observer


@dataclass(frozen=True)
class Plan:
    """The benchmarks that are asked for, and what is pending of them, in order."""

    names: Sequence[str]
    pending: Sequence[Wanted]


def plan(request: Request) -> Plan:
    """Find what is pending. Raises UserError for unknown benchmarks."""
    asked = request.arguments
    names = asked.benchmarks or definitions.names()
    chosen = [
        definitions.load(name, scale)
        for name in names
        for scale in definitions.scales(name)
        if asked.scale in (None, scale)
    ]
    extras.require("torch")
    if asked.repeat:
        return Plan(names, ())
    current = provenance.find_current_code(names, request.data_root)
    return Plan(names, _sort(wanted for one in chosen for wanted in _list(one, current[one.name])))


def _list(one: Definition, current: frozenset[str]) -> Sequence[Wanted]:
    """Return what is pending of a benchmark at a scale; nothing of one that was never measured."""
    if one.scale == "full" and one.scale not in evidence.read_file(one.name, evidence.FILE):
        return ()
    variants = tuple(registry.import_module(one.name, "broken").VARIANTS)
    shallow = baselines.ROWS.get(one.name, ()) if one.scale == "mini" else ()
    wanted = [*records.list_wanted(one, variants, current), *records.list_baselines(one, shallow)]
    return [each for each in wanted if each.seeds]


def _sort(pending: Any) -> Sequence[Wanted]:
    return sorted(pending, key=lambda one: (one.stage, one.hours, one.benchmark, one.what))


def measure(request: Request, found: Plan) -> Measured:
    """List what is pending, make it, or repeat a seed of each benchmark."""
    asked = request.arguments
    if asked.repeat:
        return repeat_all(request, found.names)
    notes, is_fine, left = list[str](), True, list(found.pending)
    if asked.run:
        notes, is_fine, left = _make(request, found.pending)
    needed = sum(one.hours for one in left)
    facts = {
        "pending": [
            {**asdict(one), "stage": STAGES[one.stage], "hours": round(one.hours, 3)}
            for one in left
        ],
        "runs": sum(len(one.seeds) for one in left),
        "hours": round(needed, 2),
    }
    by_stage = [[one.hours for one in left if one.stage == stage] for stage in range(len(STAGES))]
    hours = [f"{name} {sum(each):.1f}" for name, each in zip(STAGES, by_stage, strict=True) if each]
    total = f"pending: {len(left)} records, {facts['runs']} runs, {needed:.1f} core hours"
    notes.append(f"{total} ({', '.join(hours)})" if left else "pending: nothing")
    return Measured(left, "what is stale or missing", notes=notes, facts=facts, is_fine=is_fine)


def _make(request: Request, pending: Sequence[Wanted]) -> tuple[list[str], bool, list[Wanted]]:
    """Make what is pending and fits into the hours, in order; return what is left."""
    os.nice(19)
    asked, chosen, hours = request.arguments, list[Wanted](), 0.0
    for one in pending:
        if one.what != "result" and (asked.hours is None or hours + one.hours <= asked.hours):
            chosen.append(one)
            hours += one.hours
    if asked.jobs is None:
        made = [_make_one(one, request.data_root, request.observer) for one in chosen]
    else:
        made = _make_together(request, [each for one in chosen for each in one.split()])
    misses = [miss for _, found in made for miss in found]
    spent = f"made: {sum(seconds for seconds, _ in made) / 3600:.2f} core hours"
    return [*misses, spent], not misses, [one for one in pending if one not in chosen]


def _make_together(request: Request, runs: Sequence[Wanted]) -> list[tuple[float, list[str]]]:
    """Make runs in as many processes at a time as are asked for."""
    jobs = request.arguments.jobs
    for one in {(each.benchmark, each.scale): each for each in runs}.values():
        chosen = definitions.load(one.benchmark, one.scale)
        prepare_data(chosen, request.data_root, request.observer)
        provenance.keep_current(one.benchmark, request.data_root)
    with own_process.open_pool(jobs) as pool, request.observer.count("runs", "runs") as on_count:
        shared = request.data_root, request.open_display, jobs
        futures = [pool.submit(_make_silently, one, *shared) for one in runs]
        for done, _ in enumerate(as_completed(futures), 1):
            on_count(done, len(futures))
    return [future.result() for future in futures]


def _make_silently(
    one: Wanted, data_root: Path, open_display: "OpenDisplay", jobs: int
) -> tuple[float, list[str]]:
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        return _make_one(one, data_root, open_display(nowhere), jobs)


def _make_one(
    one: Wanted, data_root: Path, shown: "Observer", jobs: int = 1
) -> tuple[float, list[str]]:
    """Make the runs of one kind; return their seconds, and which ended as they must not."""
    chosen = definitions.load(one.benchmark, one.scale)
    if one.what.startswith(records.BASELINE):
        name = one.what.removeprefix(records.BASELINE)
        for seed in one.seeds:
            baselines.record_missing(chosen, name, seed, data_root, shown)
        return one.hours * 3600, []
    seconds, misses = 0.0, []
    wanted = list_trainings(one, chosen, data_root)
    for training, curve in trainings.train_all(chosen, wanted, data_root, shown):
        seconds += curve.seconds
        beside = {"runs_at_once": jobs} if jobs > 1 else {}
        curve = replace(curve, measured={**curve.measured, **beside})
        if one.what.startswith("batch size"):
            convergence_points.keep(chosen, training, curve)
        else:
            trainings.keep(chosen, curve)
        is_correct = training.variant == CORRECT
        if is_correct != (curve.count_samples_to_target(chosen) is not None):
            misses.append(f"problem: {one.benchmark} {one.scale}, {training.title}: "
                          f"{'missed' if is_correct else 'reached'} the targets")  # fmt: skip
    return seconds, misses


def list_trainings(one: Wanted, chosen: Definition, data_root: Path) -> list[Training]:
    """Return the runs that make what is pending."""
    variants = registry.import_module(chosen.name, "broken").VARIANTS
    variant = one.what if one.what in variants else CORRECT
    configs = [_configure(one, chosen, data_root, seed) for seed in one.seeds]
    what = f"{one.benchmark} {one.scale}, {one.what}"
    return [Training(what, variant, each, variants.get(variant)) for each in configs]


def _configure(one: Wanted, chosen: Definition, data_root: Path, seed: int) -> "RunConfig":
    """Return the configuration of a run, with the hyperparameters of its recorded point."""
    overrides = ["threads=1"]
    if one.what.startswith("batch size"):
        points = rcp.load(chosen.name, chosen.scale)
        point = points.at(one.batch_size) if points else None
        tuned = point.hyperparameters if point else {BATCH_SIZE: one.batch_size}
        rules = chosen.hyperparameters
        overrides += [
            f"{name}={value}"
            for name, value in tuned.items()
            if name in rules and rules[name].default != value
        ]
    return configure(chosen, overrides=overrides, data_root=data_root, seed=seed)


# A recorded run made again ----------------------------------------------------------------------

CONFIDENCE = 0.999  # of the interval in which one more run lies: 12 benchmarks, every night


@dataclass(frozen=True)
class Repeated:
    """A run that was made again. ``expected`` is the interval in which it should cross or score."""

    benchmark: str
    seed: int
    recorded: float | None
    now: float | None
    expected: tuple[float, float]
    verdict: str
    seconds: float

    @property
    def is_fine(self) -> bool:
        """True unless the run differs from what was recorded."""
        return self.verdict != "differs"


def repeat_all(request: Request, names: Sequence[str]) -> Measured:
    """Repeat one seed of each benchmark at mini scale that has evidence for its definition."""
    rows, notes = [], []
    for name in names:
        one = definitions.load(name, "mini")
        extras.require_for_runs(one.extras)
        recorded = evidence.load(one)
        curves = recorded.correct if recorded else ()
        seeds = sorted(curve.seed for curve in curves)
        day = datetime.now(UTC).toordinal()
        seed = request.arguments.seed or (seeds[day % len(seeds)] if seeds else 0)
        if seed not in seeds:
            notes.append(f"{name}: not repeated, because no seed {seed} is recorded")
            continue
        config = configure(one, data_root=request.data_root, seed=seed)
        wanted = [Training(name, CORRECT, config)]
        made = trainings.train_all(one, wanted, request.data_root, request.observer)
        rows += [compare(one, curves, curve) for _, curve in made]
    is_fine = all(row.is_fine for row in rows)
    return Measured(rows, "a recorded seed made again", notes=notes, is_fine=is_fine)


def compare(one: Definition, curves: Sequence[Curve], now: Curve) -> Repeated:
    """Compare a run with the recorded one of its seed, and with all recorded seeds.

    Bits differ between processors and versions of PyTorch, and rounding alone can move a crossing.
    So a run that is not the same as the recorded one must lie where one more seed would.
    """
    before = next(curve for curve in curves if curve.seed == now.seed)
    values = [value for curve in curves if (value := _measure(one, curve)) is not None]
    interval = _expect(values)
    mine = _measure(one, now)
    if before.evaluations == now.evaluations:
        verdict = "same"
    else:
        is_within = mine is not None and interval[0] <= mine <= interval[1]
        verdict = "another course, as of another seed" if is_within else "differs"
    numbers = _measure(one, before), mine, interval
    return Repeated(one.name, now.seed, *numbers, verdict, now.seconds)


def _measure(one: Definition, curve: Curve) -> float | None:
    """Return the crossing of a run that trains, the first metric of one that generates."""
    if one.kind == "train":
        return curve.find_crossing(one)
    return curve.evaluations[-1][1][one.quality[0].metric] if curve.evaluations else None


def _expect(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval of one more value, by Student's t for logarithms of positive ones."""
    from scipy.special import stdtrit

    if len(values) < 2:
        return -math.inf, math.inf
    logs = [math.log(value) for value in values]
    spread = statistics.stdev(logs) * math.sqrt(1 + 1 / len(logs))
    half = float(stdtrit(len(logs) - 1, (1 + CONFIDENCE) / 2)) * spread
    middle = statistics.fmean(logs)
    return math.exp(middle - half), math.exp(middle + half)


COLUMNS = (
    Column("stage", lambda one: STAGES[one.stage]),
    Column("benchmark", lambda one: f"{one.benchmark} {one.scale}"),
    Column("what", "what"),
    Column("runs", lambda one: len(one.seeds)),
    Column("why", "why"),
    Column("core hours", "hours", "{:.2f}"),
)
REPEATED = (
    Column("benchmark", "benchmark"),
    Column("seed", "seed"),
    Column("recorded", "recorded", "{:,.4g}"),
    Column("now", "now", "{:,.4g}"),
    Column("one more seed", lambda row: "{:,.4g} to {:,.4g}".format(*row.expected)),
    Column("verdict", "verdict"),
    Column("seconds", "seconds", "{:.0f}"),
)

STUDY = Study(
    "pending",
    plan,
    measure,
    lambda request, _: REPEATED if request.arguments.repeat else COLUMNS,
    **read_command("pending"),
)
