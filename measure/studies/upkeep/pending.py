"""`cepheid measure pending`: which recorded evidence is stale or missing, and make it again."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cepheid.benchmarks import registry
from cepheid.measure.engine import options, provenance, trainings
from cepheid.measure.engine.options import Option
from cepheid.measure.engine.study import Column, Measured, Request, Study
from cepheid.measure.engine.trainings import CORRECT, Training
from cepheid.measure.studies import convergence_points
from cepheid.measure.studies.shallow import baselines
from cepheid.measure.studies.upkeep import records, repeat
from cepheid.measure.studies.upkeep.records import STAGES, Wanted
from cepheid.reference.run.config import configure
from cepheid.rules import definition as definitions
from cepheid.rules import evidence, extras, rcp
from cepheid.rules.definition import Definition
from cepheid.rules.errors import UserError
from cepheid.rules.rcp import BATCH_SIZE

if TYPE_CHECKING:
    from cepheid.reference.run.config import RunConfig

DESCRIPTION = """\
List which records are missing, or stale because what their benchmark computes has changed: its
fingerprint (`cepheid measure fingerprint`), not a line of its code. Core hours are those that the
recorded runs took. The order is the one in which to make them, the cheapest first in each stage:
correct seeds at the default batch size; broken variants and shallow baselines; results; other batch
sizes; full scale. A full scale without any record is not listed, because its data are not here.

--run makes them in this order, on one thread and with the lowest priority, so it may run in the
background for days. Each run is recorded when it ends, and the same command continues. Results are
left out: they need the whole machine with nothing else running, and `cepheid run` makes them.

--repeat makes one recorded run of each benchmark again and compares its curve, as the nightly job
does.
"""
EXAMPLES = """\
examples:
  cepheid measure pending                                  the list
  cepheid measure pending kfac ssd --output pending.json   of two benchmarks, also as JSON
  cepheid measure pending --run --hours 8 &                a night's work in the background
  cepheid measure pending --repeat --seed 3                seed 3 of each benchmark again

exit codes: 0 listed, or made; 1 a repeated run differs, or a run missed its targets; 2 wrong use
"""


@dataclass(frozen=True)
class Plan:
    """The benchmarks that are asked for, and what is pending of them, in order."""

    names: Sequence[str]
    pending: Sequence[Wanted]


def plan(request: Request) -> Plan:
    """Find what is pending. Raises UserError for unknown benchmarks and options that differ."""
    asked = request.arguments
    names = asked.benchmarks or definitions.names()
    chosen = [definitions.load(name, scale) for name in names for scale in definitions.scales(name)]
    if asked.run and asked.repeat:
        raise UserError("--run and --repeat: give one of them")
    if asked.hours is not None and not asked.run:
        raise UserError("--hours: it limits --run, which is missing")
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
    wanted = [
        *records.list_wanted(one, variants, current),
        *records.list_baselines(one, shallow),
    ]
    return [each for each in wanted if each.seeds]


def _sort(pending: Any) -> Sequence[Wanted]:
    return sorted(pending, key=lambda one: (one.stage, one.hours, one.benchmark, one.what))


def measure(request: Request, found: Plan) -> Measured:
    """List what is pending, make it, or repeat a seed of each benchmark."""
    asked = request.arguments
    if asked.repeat:
        return repeat.repeat_all(request, found.names)
    notes, is_fine, left = list[str](), True, list(found.pending)
    if asked.run:
        notes, is_fine, left = _make(request, found.pending)
    facts = {
        "pending": [
            {**asdict(one), "stage": STAGES[one.stage], "hours": round(one.hours, 3)}
            for one in left
        ],
        "runs": sum(len(one.seeds) for one in left),
        "hours": round(sum(one.hours for one in left), 2),
    }
    hours = [
        f"{name} {sum(one.hours for one in left if one.stage == stage):.1f}"
        for stage, name in enumerate(STAGES)
        if any(one.stage == stage for one in left)
    ]
    total = f"pending: {len(left)} records, {facts['runs']} runs, {facts['hours']:.1f} core hours"
    notes.append(f"{total} ({', '.join(hours)})" if left else "pending: nothing")
    return Measured(left, "what is stale or missing", notes=notes, facts=facts, is_fine=is_fine)


def _make(request: Request, pending: Sequence[Wanted]) -> tuple[list[str], bool, list[Wanted]]:
    """Make what is pending, the next only if it fits into the hours; return what is left."""
    import os

    os.nice(19)
    budget, left, misses = request.arguments.hours, [], []
    spent = 0.0
    for one in pending:
        if one.what == "result" or (budget is not None and spent + one.hours > budget):
            left.append(one)
            continue
        chosen = definitions.load(one.benchmark, one.scale)
        if one.what.startswith(records.BASELINE):
            name = one.what.removeprefix(records.BASELINE)
            for seed in one.seeds:
                baselines.record_missing(chosen, name, seed, request.data_root, request.observer)
            spent += one.hours
            continue
        wanted = list_trainings(one, chosen, request)
        for training, curve, measured in trainings.train_all(
            chosen, wanted, request.data_root, request.observer
        ):
            spent += curve.seconds / 3600
            if one.what.startswith("batch size"):
                convergence_points.keep(chosen, training, curve, measured)
            else:
                trainings.keep(chosen, curve, measured)
            is_correct = training.variant == CORRECT
            if is_correct != (curve.count_samples_to_target(chosen) is not None):
                misses.append(f"problem: {one.benchmark} {one.scale}, {training.title}: "
                              f"{'missed' if is_correct else 'reached'} the targets")  # fmt: skip
    return [*misses, f"made: {spent:.2f} core hours"], not misses, left


def list_trainings(one: Wanted, chosen: Definition, request: Request) -> list[Training]:
    """Return the runs that make what is pending."""
    variants = registry.import_module(chosen.name, "broken").VARIANTS
    variant = one.what if one.what in variants else CORRECT
    configs = [_configure(one, chosen, request, seed) for seed in one.seeds]
    what = f"{one.benchmark} {one.scale}, {one.what}"
    return [Training(what, variant, each, variants.get(variant)) for each in configs]


def _configure(one: Wanted, chosen: Definition, request: Request, seed: int) -> "RunConfig":
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
    return configure(chosen, overrides=overrides, data_root=request.data_root, seed=seed)


COLUMNS = (
    Column("stage", lambda one: STAGES[one.stage]),
    Column("benchmark", lambda one: f"{one.benchmark} {one.scale}"),
    Column("what", "what"),
    Column("runs", lambda one: len(one.seeds)),
    Column("why", "why"),
    Column("core hours", "hours", "{:.2f}"),
)

STUDY = Study(
    "pending",
    plan,
    measure,
    lambda request, _: repeat.COLUMNS if request.arguments.repeat else COLUMNS,
    description=DESCRIPTION,
    examples=EXAMPLES,
    options=(
        Option("benchmarks BENCHMARK", "which benchmarks (default: all)", more={"nargs": "*"}),
        Option("--run", "make what is pending", bool),
        Option("--hours H", "with --run: start nothing that needs more core hours", float, least=0),
        Option("--repeat", "make one recorded run of each benchmark again, at mini scale", bool),
        Option("--seed S", "with --repeat: which seed (default: another one each day)", int,
               least=1),
        options.FILE,
        options.DATA,
    ),
)  # fmt: skip
